//! The table in counts.md: the cost of each kernel, one line per kernel.

use crate::{catalog, listing::Listing, loops};
use std::fmt::Write as _;

/// The name of the section of the document that holds the table.
const SECTION: &str = "counts";

const HEAD: &str = "\
| kernel | language | instructions | registers | threads | spills | a turn of the hot loop: instructions | cycles | outside of it: cycles | \
a turn does | cycles each |
| --- | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |
";

/// A row of the table, without the columns computed from others. Lower is better for all figures
/// but the threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub kernel: String,
    pub language: String,
    pub figures: [Option<u64>; 7],
}

const NAMES: [&str; 7] = [
    "instructions",
    "registers",
    "threads",
    "spills",
    "instructions per iteration of the hot loop",
    "cycles per iteration of the hot loop",
    "cycles outside the hot loop",
];
const THREADS: usize = 2;
const TURN_CYCLES: usize = 5;

impl Row {
    pub fn of(listing: &Listing) -> Self {
        let (kernel, language) = listing.kernel.split_once(' ').unwrap_or((&listing.kernel, ""));
        let parts = loops::parts(listing);
        let figures = [
            Some(listing.instructions),
            Some(listing.half_registers.div_ceil(2)),
            Some(listing.threads),
            Some(listing.spills.0 + listing.spills.1),
            parts.as_ref().map(|parts| parts.turn.instructions),
            parts.as_ref().map(|parts| parts.turn.cycles()),
            parts.as_ref().map(|parts| parts.outside.cycles()),
        ];
        Self { kernel: kernel.to_owned(), language: language.to_owned(), figures }
    }

    fn parse(line: &str) -> Option<Self> {
        let cells: Vec<_> =
            line.trim().strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
        let [kernel, language, figures @ .., _, _] = &cells[..] else { return None };
        let mut row = Self {
            kernel: kernel.trim_matches('`').to_owned(),
            language: (*language).to_owned(),
            figures: [None; 7],
        };
        if figures.len() != row.figures.len() {
            return None;
        }
        for (figure, cell) in row.figures.iter_mut().zip(figures) {
            *figure = if cell.is_empty() { None } else { Some(cell.parse().ok()?) };
        }
        Some(row)
    }

    fn line(&self) -> String {
        let mut line = format!("| `{}` | {} |", self.kernel, self.language);
        for figure in self.figures {
            line += &figure.map_or(" |".to_owned(), |figure| format!(" {figure} |"));
        }
        let work = catalog::work(&self.kernel, &self.language).zip(self.figures[TURN_CYCLES]);
        line += &work.map_or(" | |".to_owned(), |(work, cycles)| {
            format!(
                " {} {} | {:.2} |",
                work.count,
                work.unit,
                cycles as f64 / f64::from(work.count)
            )
        });
        line + "\n"
    }

    fn is(&self, other: &Self) -> bool {
        self.kernel == other.kernel && self.language == other.language
    }
}

/// What is wrong with the products, pairs of products that are made at once, or weights that a
/// kernel's source declares for a turn: each takes a multiplication, and what else multiplies is
/// less. (A compiler that leaves an inner loop as it is makes less of a turn than one that unrolls
/// it, and the costliest loop may be one that multiplies nothing.)
pub fn unlike(listing: &Listing) -> Option<String> {
    let (kernel, language) = listing.kernel.split_once(' ')?;
    let declared = catalog::work(kernel, language)
        .filter(|work| matches!(work.unit, "products" | "pairs of products" | "weights"))?;
    let found = loops::parts(listing).map_or(0, |parts| parts.turn.multiplications);
    let wrong = !is_of(found, declared.count.into());
    wrong.then(|| {
        format!(
            "{}: a turn is declared to do {} {}, and multiplies {found} times",
            listing.kernel, declared.count, declared.unit
        )
    })
}

/// Returns whether this many multiplications are those of this many products. A tenth less, since a
/// few first ones are no fused ones, and up to twice as many, since weights are decoded, and places
/// reckoned, by some.
fn is_of(multiplications: u64, products: u64) -> bool {
    10 * multiplications >= 9 * products && multiplications < 2 * products
}

/// The rows of the document's table.
///
/// # Errors
/// If there is no table.
pub fn read(document: &str) -> Result<Vec<Row>, String> {
    let [_, table, _] = split(document, SECTION)?;
    Ok(table.lines().filter_map(Row::parse).collect())
}

/// The document with the table replaced, and `notes` before it.
///
/// # Errors
/// If the document has no such section.
pub fn write(document: &str, rows: &[Row], notes: &str) -> Result<String, String> {
    replace(document, SECTION, &format!("{notes}\n{}", table(rows)))
}

/// A table of these rows.
pub fn table(rows: &[Row]) -> String {
    std::iter::once(HEAD.to_owned()).chain(rows.iter().map(Row::line)).collect()
}

/// The document with the text of a section replaced.
///
/// # Errors
/// If it has no such section.
pub fn replace(document: &str, section: &str, text: &str) -> Result<String, String> {
    let [before, _, after] = split(document, section)?;
    Ok(format!("{before}{text}{after}"))
}

/// The text before, in and after a section, which two HTML comments enclose.
fn split<'a>(document: &'a str, section: &str) -> Result<[&'a str; 3], String> {
    let (begin, end) = (format!("<!-- {section} -->\n"), format!("<!-- end of {section} -->"));
    let place = document.find(&begin).and_then(|at| Some((at + begin.len(), document.find(&end)?)));
    let (from, to) = place
        .filter(|(from, to)| from <= to)
        .ok_or_else(|| format!("the document has no section `{section}`"))?;
    Ok([&document[..from], &document[from..to], &document[to..]])
}

/// How rows differ from the recorded ones.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Figures that are worse, and rows that only one of the two has.
    pub worse: Vec<String>,
    /// Figures that are better.
    pub better: Vec<String>,
}

pub fn compare(recorded: &[Row], found: &[Row]) -> Difference {
    let mut difference = Difference::default();
    for row in found {
        let name = format!("{} {}", row.kernel, row.language);
        let Some(old) = recorded.iter().find(|old| old.is(row)) else {
            difference.worse.push(format!("{name}: not in the table"));
            continue;
        };
        for (i, what) in NAMES.iter().enumerate().filter(|&(i, _)| old.figures[i] != row.figures[i])
        {
            let show =
                |figure: Option<u64>| figure.map_or("none".to_owned(), |figure| figure.to_string());
            let mut text = String::new();
            // Writing to a String cannot fail.
            let _ =
                write!(text, "{name}: {what} {} -> {}", show(old.figures[i]), show(row.figures[i]));
            let rises = row.figures[i] > old.figures[i];
            if rises == (i == THREADS) {
                difference.better.push(text)
            } else {
                difference.worse.push(text)
            }
        }
    }
    let gone = recorded.iter().filter(|old| !found.iter().any(|row| old.is(row)));
    difference
        .worse
        .extend(gone.map(|old| format!("{} {}: in the table only", old.kernel, old.language)));
    difference
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kernel: &str, figures: [Option<u64>; 7]) -> Row {
        Row { kernel: kernel.into(), language: "MSL".into(), figures }
    }

    const FIGURES: [Option<u64>; 7] =
        [Some(407), Some(47), Some(1024), Some(0), None, None, Some(3)];

    #[test]
    fn what_is_written_is_read() {
        let rows = [row("a", FIGURES), row("bitlinear_gemv_f16", [Some(192); 7])];
        let document =
            write("# Title\n<!-- counts -->\nold\n<!-- end of counts -->\nend\n", &rows, "notes\n")
                .unwrap();
        assert!(document.starts_with("# Title\n<!-- counts -->\nnotes\n\n| kernel"), "{document}");
        assert!(document.ends_with("<!-- end of counts -->\nend\n"), "{document}");
        assert!(
            document.contains("| `a` | MSL | 407 | 47 | 1024 | 0 | | | 3 | | |\n"),
            "{document}"
        );
        assert!(document.contains(" | 192 | 128 weights | 1.50 |\n"), "{document}");
        assert_eq!(read(&document).unwrap(), rows);
        assert!(read("# Title").is_err());
    }

    #[test]
    fn a_turn_multiplies_as_often_as_it_says() {
        // What was declared wrong once: turns of four tokens for those of one, of a whole tile for
        // those of a quad of it.
        assert!(!is_of(274, 64) && !is_of(64, 512) && !is_of(129, 64));
        assert!(is_of(120, 128) && is_of(128, 128) && is_of(232, 128));
    }

    #[test]
    fn rises_and_missing_rows_are_worse() {
        let recorded = [row("a", FIGURES), row("gone", FIGURES)];
        let mut figures = FIGURES;
        (figures[0], figures[1], figures[2]) = (Some(408), Some(46), Some(896));
        let found = compare(&recorded, &[row("a", figures), row("new", FIGURES)]);
        let worse = [
            "a MSL: instructions 407 -> 408",
            "a MSL: threads 1024 -> 896",
            "new MSL: not in the table",
            "gone MSL: in the table only",
        ];
        assert_eq!(found.worse, worse);
        assert_eq!(found.better, ["a MSL: registers 47 -> 46"]);
        assert_eq!(compare(&recorded[..1], &recorded[..1]), Difference::default());
    }
}

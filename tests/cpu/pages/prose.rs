//! How pages read: words of a sentence and of a cell, lines of a page, spelling, terms.

use std::{fs, path::Path};
use support::repository;

/// Pages that programs write: their prose is measured where it is made.
const GENERATED: [&str; 2] = ["docs/internals/kernels.md", "docs/internals/model-checks.md"];
/// What follows it in a page is generated.
const MARK: &str = "<!-- From here on generated";

const MOST_WORDS_ON_AVERAGE: f64 = 18.0;
const MOST_WORDS: usize = 35;
const MOST_WORDS_OF_A_CELL: usize = 25;
/// Lines of `README.md`, of `ARCHITECTURE.md`, and of all pages in `docs/`.
const MOST_LINES: [usize; 3] = [150, 200, 2500];

/// Parts of words in British spelling. Code is not searched, since it names what others named.
pub const BRITISH: [&str; 39] = [
    "analyse",
    "artefact",
    "behaviour",
    "cancelled",
    "catalogue",
    "centre",
    "characterise",
    "colour",
    "defence",
    "favour",
    "finalis",
    "fulfil ",
    "generalis",
    "grey",
    "honour",
    "initialis",
    "judgement",
    "labelled",
    "learnt",
    "licence",
    "materialis",
    "maximis",
    "minimis",
    "modelled",
    "neighbour",
    "normalis",
    "optimis",
    "organis",
    "parallelise",
    "programme ",
    "quantis",
    "recognis",
    "serialis",
    "specialise",
    "summaris",
    "synchronis",
    "tokenis",
    "vectoris",
    "whilst",
];

/// Phrases for which the field has a term, with that term.
const TERMS: [(&str, &str); 18] = [
    ("in any company", "batch-invariant"),
    ("same bits", "bit-identical"),
    ("to the bit", "bit-identical"),
    ("guessed ahead", "speculative decoding"),
    ("guessed tokens", "draft tokens"),
    ("in halves", "in f16"),
    ("half of a block", "sublayer"),
    ("matrix unit", "tensor cores"),
    ("the roof ", "peak bandwidth, peak compute"),
    ("shares of positions", "KV splits"),
    ("rounded activations", "block floating point activations"),
    ("by groups", "per-group"),
    ("by rows", "per-row"),
    ("twin", "CPU reference"),
    ("native container", "prepacked model file"),
    ("float masters", "float weights"),
    ("as vectors", "embeddings"),
    ("refused, by name", "not supported; the error names it"),
];

/// A page's text without code, links and tables.
struct Page {
    name: String,
    /// Of prose, list items and quotations.
    sentences: Vec<String>,
    /// Of tables, and headings.
    cells: Vec<String>,
    lines: usize,
}

impl Page {
    fn read(name: &str) -> Self {
        let text = fs::read_to_string(repository(name)).unwrap();
        let text = text.split(MARK).next().unwrap_or_default();
        let mut page = Self {
            name: name.to_owned(),
            sentences: Vec::new(),
            cells: Vec::new(),
            lines: text.lines().count(),
        };
        let (mut paragraph, mut fenced, mut in_list) = (String::new(), false, false);
        for line in text.lines() {
            let words = line.trim();
            let fence = words.starts_with("```");
            fenced ^= fence;
            if fence || fenced || is_block(words) {
                page.end(&mut paragraph);
            }
            if !fenced && words.starts_with(['|', '#']) {
                page.cells.extend(cells_of(words));
            }
            let item = item(words);
            let indented = line.starts_with("    ");
            let code = fenced || (indented && paragraph.is_empty() && !in_list);
            if fence || code || (is_block(words) && item.is_none()) {
                continue;
            }
            in_list = item.is_some() || (in_list && indented);
            paragraph += item.unwrap_or(words).trim_start_matches("> ");
            paragraph.push(' ');
        }
        page.end(&mut paragraph);
        page
    }

    /// Ends a paragraph: adds its sentences.
    fn end(&mut self, paragraph: &mut String) {
        let mut sentence = Vec::new();
        let text = plain(paragraph);
        for word in text.split_whitespace() {
            sentence.push(word);
            let end = word.trim_end_matches(['"', ')', '”', '*']);
            if end.ends_with(['.', '?', '!']) && !end.ends_with("..") {
                self.sentences.push(sentence.join(" "));
                sentence.clear();
            }
        }
        self.sentences.extend((!sentence.is_empty()).then(|| sentence.join(" ")));
        paragraph.clear();
    }
}

/// Returns whether a line is no part of the paragraph before it.
fn is_block(words: &str) -> bool {
    words.is_empty()
        || ["#", "|", "<!--", "!["].iter().any(|start| words.starts_with(start))
        || item(words).is_some()
}

/// Returns what follows the sign of a list item.
fn item(words: &str) -> Option<&str> {
    let numbered = words.split_once(". ").filter(|(number, _)| number.parse::<u32>().is_ok());
    words.strip_prefix("- ").or(numbered.map(|(_, item)| item))
}

fn cells_of(line: &str) -> Vec<String> {
    line.replace("\\|", "/").split('|').map(plain).collect()
}

/// Returns a text with a word in the place of each piece of code, and without the targets of links.
fn plain(text: &str) -> String {
    let code = |(n, part): (usize, &str)| if n % 2 == 0 { part.to_owned() } else { "code".into() };
    let text: String = text.split('`').enumerate().map(code).collect();
    let mut parts = text.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.split_once(')').map_or(part, |(_, rest)| rest));
    rest.fold(first, |text, rest| text + rest).replace('[', "")
}

fn words(sentence: &str) -> usize {
    sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

/// Every page of docs/, below a folder, by its path in the repository.
pub fn pages_below(folder: &str) -> Vec<String> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(repository(folder)).unwrap() {
        let path = format!("{folder}/{}", entry.unwrap().file_name().to_str().unwrap());
        if repository(&path).is_dir() {
            pages.extend(pages_below(&path));
        } else if Path::new(&path).extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages.sort();
    pages
}

/// The pages whose prose is ours.
fn pages() -> Vec<Page> {
    let pages = ["README.md".to_owned(), "ARCHITECTURE.md".to_owned()].into_iter();
    let pages = pages.chain(pages_below("docs"));
    pages.filter(|page| !GENERATED.contains(&&**page)).map(|page| Page::read(&page)).collect()
}

#[test]
fn sentences_are_short() {
    let mut faults = Vec::new();
    for Page { name, sentences, .. } in pages() {
        let counts: Vec<_> = sentences.iter().map(|sentence| words(sentence)).collect();
        let share = |most: usize| {
            100.0 * counts.iter().filter(|&&count| count > most).count() as f64
                / counts.len().max(1) as f64
        };
        let mean = counts.iter().sum::<usize>() as f64 / counts.len().max(1) as f64;
        println!("{name:40} {mean:5.1} words a sentence, {:2.0} % over 30", share(30));
        if mean > MOST_WORDS_ON_AVERAGE {
            faults.push(format!("{name}: {mean:.1} words a sentence"));
        }
        let long = counts.iter().zip(&sentences).filter(|(count, _)| **count > MOST_WORDS);
        for (count, sentence) in long {
            faults.push(format!("{name}: {count} words: {sentence}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn cells_of_tables_are_short() {
    for Page { name, cells, .. } in pages() {
        for cell in cells {
            let count = words(&cell);
            assert!(count <= MOST_WORDS_OF_A_CELL, "{name}: {count} words: {cell}");
        }
    }
}

#[test]
fn pages_have_few_lines() {
    let mut lines = [0; 3];
    for page in pages() {
        let place = ["README.md", "ARCHITECTURE.md"].iter().position(|name| page.name == *name);
        lines[place.unwrap_or(2)] += page.lines;
    }
    println!("{lines:?} of {MOST_LINES:?} lines");
    assert!(lines.iter().zip(MOST_LINES).all(|(&lines, most)| lines <= most), "{lines:?}");
}

/// Checks that no page has one of `phrases`, each of which comes with what to write instead.
fn check_phrases<'a>(phrases: impl IntoIterator<Item = (&'a str, &'a str)> + Clone) {
    let mut found = Vec::new();
    for Page { name, sentences, cells, .. } in pages() {
        for text in sentences.iter().chain(&cells) {
            let text = text.to_lowercase() + " ";
            let phrases = phrases.clone().into_iter().filter(|(phrase, _)| text.contains(phrase));
            found.extend(phrases.map(|(phrase, term)| {
                format!("{name}: `{}` in `{}`: write {term}", phrase.trim(), text.trim())
            }));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn spelling_is_american() {
    check_phrases(BRITISH.map(|part| (part, "the American spelling")));
}

#[test]
fn terms_are_those_of_the_field() {
    check_phrases(TERMS);
}

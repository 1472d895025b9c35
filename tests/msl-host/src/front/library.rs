//! Reads `front/library.txt`, and writes it as C++ declarations.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    ops::RangeInclusive,
    sync::OnceLock,
};

/// The public names of Metal's standard library.
pub struct Library {
    rows: Vec<Row>,
    /// The first language version of each name, as `__METAL_VERSION__` has it.
    pub since: HashMap<String, u32>,
    /// The names that are not in namespace `metal`, or not only: macros and types.
    pub global: HashSet<String>,
}

/// Declarations of one form.
struct Row {
    version: u32,
    /// Empty where the declaration has no `T`.
    types: Vec<Type>,
    declaration: String,
    names: Vec<String>,
}

/// A scalar type or a vector of it.
#[derive(Clone)]
struct Type {
    scalar: String,
    count: u32,
}

impl Library {
    /// The table of this crate.
    pub fn get() -> &'static Self {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        LIBRARY.get_or_init(|| Self::read(include_str!("../../front/library.txt")))
    }

    fn read(table: &str) -> Self {
        let rows: Vec<_> = table.replace("\n ", " ").lines().filter_map(Row::read).collect();
        let (mut since, mut global) = (HashMap::new(), HashSet::new());
        for row in &rows {
            for name in row.expanded().map(|(_, name)| name) {
                if row.is_global() {
                    global.insert(name.clone());
                }
                since
                    .entry(name)
                    .and_modify(|first: &mut u32| *first = row.version.min(*first))
                    .or_insert(row.version);
            }
        }
        Self { rows, since, global }
    }

    /// Returns whether one of `versions` declares something by a name.
    pub fn changes(&self, name: &str, versions: RangeInclusive<u32>) -> bool {
        self.rows
            .iter()
            .filter(|row| versions.contains(&row.version))
            .any(|row| row.expanded().any(|(_, other)| other == name))
    }

    /// Writes the declarations of a language version, then the constructors of its vectors.
    pub fn header(&self, version: u32) -> String {
        let (mut header, mut constructors) = (String::new(), String::new());
        for row in self.rows.iter().filter(|row| row.version <= version) {
            for (ty, name) in row.expanded() {
                let declaration = substitute(&row.declaration, ty.as_ref(), &name);
                // Writing to a String cannot fail.
                let _ = if row.is_global() {
                    writeln!(header, "{declaration}")
                } else {
                    writeln!(header, "namespace metal {{ {declaration} }}")
                };
                if declaration.starts_with("GLOBAL_") {
                    let _ = writeln!(
                        constructors,
                        "#define {name}(...) front::vector<{name}>(__VA_ARGS__)"
                    );
                }
            }
        }
        header + &constructors
    }
}

impl Row {
    /// Reads a line; `None` for sections and comments.
    fn read(line: &str) -> Option<Self> {
        let columns: Vec<_> = line.split(" | ").collect();
        let [version, types, declaration, names] = columns[..] else { return None };
        let (major, minor) = version.split_once('.')?;
        Some(Self {
            version: 100 * major.parse::<u32>().ok()? + 10 * minor.parse::<u32>().ok()?,
            types: types.split_whitespace().filter(|&ty| ty != "-").flat_map(Type::sizes).collect(),
            declaration: declaration.to_owned(),
            names: names.split_whitespace().map(str::to_owned).collect(),
        })
    }

    fn is_global(&self) -> bool {
        self.declaration.starts_with('#') || self.declaration.starts_with("GLOBAL")
    }

    /// Each name with each type.
    fn expanded(&self) -> impl Iterator<Item = (Option<Type>, String)> {
        let types = if self.types.is_empty() {
            vec![None]
        } else {
            self.types.iter().cloned().map(Some).collect()
        };
        self.names.iter().flat_map(move |name| {
            let named =
                types.clone().into_iter().map(move |ty| (substitute(name, ty.as_ref(), ""), ty));
            named.map(|(name, ty)| (ty, name))
        })
    }
}

impl Type {
    /// The types that `half`, `half+` or `half*` stand for.
    fn sizes(pattern: &str) -> impl Iterator<Item = Self> {
        let scalar = pattern.trim_end_matches(['+', '*']).to_owned();
        let counts = match pattern.chars().last() {
            Some('*') => 1..=4,
            Some('+') => 2..=4,
            _ => 1..=1,
        };
        counts.map(move |count| Self { scalar: scalar.clone(), count })
    }

    fn of(&self, scalar: &str) -> String {
        if self.count == 1 { scalar.to_owned() } else { format!("{scalar}{}", self.count) }
    }
}

/// Replaces the table's placeholders: whole words, or what underscores part of one.
fn substitute(pattern: &str, ty: Option<&Type>, name: &str) -> String {
    let mut text = String::new();
    for word in pattern.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let end = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let by = match (end, ty) {
            ("NAME", _) => name.to_owned(),
            ("T", Some(ty)) => ty.of(&ty.scalar),
            ("S", Some(ty)) => ty.scalar.clone(),
            ("COUNT", Some(ty)) => ty.count.to_string(),
            ("BOOL", Some(ty)) => ty.of("bool"),
            ("INT", Some(ty)) => ty.of("int"),
            ("UNSIGNED", Some(ty)) if ty.scalar.starts_with('u') => ty.of(&ty.scalar),
            ("UNSIGNED", Some(ty)) => ty.of(&format!("u{}", ty.scalar)),
            _ => end.to_owned(),
        };
        text += &by;
        text += &word[end.len()..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_declarations_of_their_version() {
        let library = Library::read(
            "6.3 Integers\n2.3 | int* | UNSIGNED NAME(T x, BOOL c); | absdiff\n more\n3.1 | half+ | S NAME(T x); | dot\n2.3 | - | enum NAME {}; | order\n\
             2.3 | int | void NAME(atomic_T* o); | store_T\n2.3 | - | #define NAME 1.0f | MAX\n",
        );
        let header = library.header(230);
        let lines: Vec<_> = header.lines().collect();
        assert_eq!(lines[0], "namespace metal { uint absdiff(int x, bool c); }");
        assert_eq!(lines[3], "namespace metal { uint4 absdiff(int4 x, bool4 c); }");
        assert_eq!(lines[4], "namespace metal { uint more(int x, bool c); }");
        assert_eq!(
            lines[8..],
            [
                "namespace metal { enum order {}; }",
                "namespace metal { void store_int(atomic_int* o); }",
                "#define MAX 1.0f"
            ]
        );
        assert!(library.header(310).contains("namespace metal { half dot(half2 x); }"));
        assert_eq!(
            (library.since["dot"], library.since["more"], library.since["store_int"]),
            (310, 230, 230)
        );
    }

    #[test]
    fn every_line_of_the_table_is_read() {
        let table = include_str!("../../front/library.txt");
        let of_rows = |line: &&str| line.contains(" | ") && !line.starts_with('#');
        assert_eq!(Library::get().rows.len(), table.lines().filter(of_rows).count());
        assert!(
            Library::get()
                .rows
                .iter()
                .all(|row| !row.names.is_empty() && row.declaration.contains("NAME"))
        );
    }
}

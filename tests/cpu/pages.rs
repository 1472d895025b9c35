//! Pages that people read.

mod comments;
mod figures;
mod messages;
mod names;
mod prose;

use prose::pages_below;
use std::{collections::BTreeSet, fs, path::Path};
use support::{repository, sources_below};

/// Returns the anchors that GitHub and mdBook give to the headings of a page.
fn anchors(page: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(page).unwrap();
    let anchor = |heading: &str| {
        let name = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        name.chars().filter(|&c| c.is_alphanumeric() || c == '-' || c == '_').collect()
    };
    text.lines().filter(|line| line.starts_with('#')).map(anchor).collect()
}

/// Every page that people read can be reached from the README by its links, and every link to a
/// file of the repository, or to a heading, leads to one.
#[test]
fn pages_are_linked_and_links_lead_somewhere() {
    let (mut open, mut seen) =
        (vec![repository("README.md").canonicalize().unwrap()], BTreeSet::new());
    while let Some(page) = open.pop() {
        if !seen.insert(page.clone()) || page.extension().is_none_or(|extension| extension != "md")
        {
            continue;
        }
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { page.clone() } else { page.with_file_name(path) };
            let target = target.canonicalize().unwrap_or_else(|_| {
                panic!("{} links to {link}, which is not there", page.display())
            });
            assert!(
                heading.is_empty() || anchors(&target).contains(heading),
                "{} links to {link}: there is no such heading",
                page.display()
            );
            open.push(target);
        }
    }
    let docs = repository("docs").canonicalize().unwrap();
    let pages: Vec<_> =
        [docs.clone(), docs.join("guide"), docs.join("reference"), docs.join("internals")]
            .iter()
            .flat_map(|folder| fs::read_dir(folder).unwrap())
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file())
            .collect();
    assert!(pages.len() > 10, "{pages:?}");
    // The book's table of contents is for mdBook.
    for page in pages.iter().filter(|page| !page.ends_with("SUMMARY.md")) {
        assert!(seen.contains(page), "no link leads to {}", page.display());
    }
}

/// The table of contents of the book, which book.toml describes, has every page of docs/.
#[test]
fn the_book_has_every_page() {
    let summary = fs::read_to_string(repository("docs/SUMMARY.md")).unwrap();
    let chapters: Vec<_> = summary
        .split("](")
        .skip(1)
        .filter_map(|rest| Some(format!("docs/{}", rest.split_once(')')?.0)))
        .collect();
    let mut pages = pages_below("docs");
    pages.retain(|page| page != "docs/SUMMARY.md");
    let missing: Vec<_> = pages.iter().filter(|page| !chapters.contains(page)).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md does not list {missing:?}");
    assert_eq!(chapters.len(), pages.len(), "a chapter is listed twice, or is no page of docs/");
}

/// Every row of these pages names tests or scripts, and these are there.
#[test]
fn tables_name_tests_that_exist() {
    rows_name_tests_that_exist("SECURITY.md");
    rows_name_tests_that_exist("tests/client-checks.md");
}

/// Returns whether a function with this name has the attribute of a test, or is run as one by the
/// server's macro `each_engine`.
fn is_a_test(name: &str, sources: &str) -> bool {
    let head = format!("fn {name}(");
    let has_attribute = |start: usize| {
        let above = sources[..start].lines().rev().map(str::trim);
        // The line of the function itself holds what stands before `fn`.
        above
            .skip_while(|line| matches!(*line, "" | "async" | "pub"))
            .take_while(|line| line.starts_with("#[") || line.starts_with("///"))
            .any(|line| line.contains("test]"))
    };
    sources.contains(&format!("each_engine!({name});"))
        || sources.match_indices(&head).any(|(start, _)| has_attribute(start))
}

fn rows_name_tests_that_exist(page: &str) {
    let page = fs::read_to_string(repository(page)).unwrap();
    let sources: String = ["src", "tests", "chat-template", "cli", "coreml", "serve", "train"]
        .map(|folder| sources_below(&repository(folder)))
        .concat();
    let is_test = |name: &str| {
        name.len() > 12
            && name.contains('_')
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let tests = |text: &str| {
        text.split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| is_test(name))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let is_row = |line: &&str| {
        line.starts_with("| ")
            && !["| ---", "| input |", "| what |"].iter().any(|start| line.starts_with(start))
    };
    let last = |row: &str| row.trim_end_matches([' ', '|']).rsplit('|').next().map(str::to_owned);
    for row in page.lines().filter(is_row) {
        let column = last(row).unwrap_or_default();
        let is_script = |name: &str| name.starts_with("scripts/") && repository(name).is_file();
        let has_script = column.split('`').any(is_script);
        assert!(has_script || !tests(&column).is_empty(), "no test is named: {row}");
    }
    // Other columns have names of fields and functions.
    let text =
        |line: &str| if is_row(&line) { last(line).unwrap_or_default() } else { line.to_owned() };
    let all: BTreeSet<String> = page.lines().flat_map(|line| tests(&text(line))).collect();
    let missing: Vec<_> = all.iter().filter(|name| !is_a_test(name, &sources)).collect();
    assert!(
        all.len() > 50 && missing.is_empty(),
        "of {} tests, these are not there: {missing:?}",
        all.len()
    );
}

//! Pages that people read.

use std::{collections::BTreeSet, fs};
use support::repository;

/// Every page that people read can be reached from the README by its links, and every link to a file of the repository leads to one.
#[test]
fn pages_are_linked_and_links_lead_somewhere() {
    let (mut open, mut seen) = (vec![repository("README.md").canonicalize().unwrap()], BTreeSet::new());
    while let Some(page) = open.pop() {
        if !seen.insert(page.clone()) || page.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            if link.is_empty() || link.contains("://") {
                continue;
            }
            let target = page.parent().unwrap().join(link);
            let target = target.canonicalize().unwrap_or_else(|_| panic!("{} links to {link}, which is not there", page.display()));
            open.push(target);
        }
    }
    let pages = fs::read_dir(repository("docs")).unwrap().map(|entry| entry.unwrap().path().canonicalize().unwrap());
    for page in pages.filter(|page| page.is_file()) {
        assert!(seen.contains(&page), "no link leads to {}", page.display());
    }
}

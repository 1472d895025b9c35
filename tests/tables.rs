//! Tables in documents that are made from the code. `UPDATE=1` writes them: `UPDATE=1 cargo test -p bitnet-wgpu-tests --test tables`.

use bitnet_wgpu::{ShaderLanguage, catalog};
use std::{collections::BTreeSet, fmt::Write as _, fs};
use support::{Op, context, ops, repository};

/// What stands in a document between `<!-- name: begin -->` and `<!-- name: end -->` is `wanted`.
fn check(document: &str, name: &str, wanted: &str) {
    let path = repository(document);
    let text = fs::read_to_string(&path).unwrap();
    let [begin, end] = ["begin", "end"].map(|at| format!("<!-- {name}: {at} -->"));
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("{document} lacks {begin}"));
    let (found, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{document} lacks {end}"));
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, format!("{before}{begin}\n{wanted}{end}{after}")).unwrap();
    } else {
        assert_eq!(found.trim(), wanted.trim(), "{document}: the table `{name}` is out of date; UPDATE=1 writes it");
    }
}

/// The kernels that the cases of an op record, in the order of the catalog.
fn kernels(op: &Op) -> Vec<&'static str> {
    let wgsl = context().with_language(ShaderLanguage::Wgsl).unwrap();
    let cases = op.cases().iter().filter(|case| !case.f16 || wgsl.capabilities().f16);
    let recorded: BTreeSet<String> = cases
        .flat_map(|case| {
            let recorded = case.record(&wgsl.restricted(case.restrict)).unwrap();
            recorded.recording.kernels().map(|kernel| kernel.name.to_owned()).collect::<Vec<_>>()
        })
        .collect();
    catalog().map(|kernel| kernel.name).filter(|name| recorded.contains(*name)).collect()
}

#[test]
fn ops_and_their_kernels() {
    let mut table = "| op | its kernels (*italic*: in WGSL only) | compared by |\n| --- | --- | --- |\n".to_owned();
    for op in ops() {
        let has_metal = |name: &str| catalog().any(|kernel| kernel.name == name && kernel.source(ShaderLanguage::Msl).is_some());
        let shown: Vec<_> =
            kernels(op).into_iter().map(|name| if has_metal(name) { format!("`{name}`") } else { format!("*`{name}`*") }).collect();
        let exact = op.cases().iter().filter(|case| case.exact).count();
        let by = match exact {
            0 => "derived bounds",
            all if all == op.cases().len() => "equal bits",
            _ => "equal bits, or derived bounds",
        };
        writeln!(table, "| `{}` | {} | {by} |", op.name, shown.join(", ")).unwrap();
    }
    check("docs/kernels.md", "kernels", &table);
}

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

//! Figures in pages are those of the recorded runs, and features those of Cargo.toml.

use serde_json::Value;
use std::{collections::BTreeSet, fs};
use support::repository;

fn text(name: &str) -> String {
    fs::read_to_string(repository(name)).unwrap()
}

fn results(name: &str) -> Value {
    serde_json::from_str(&text(&format!("benches/results/{name}.json"))).unwrap()
}

/// Returns the numbers in the cells of the one row of a page that has a label. A cell may have
/// several; thousands are set apart by spaces.
fn row(page: &str, label: &str) -> Vec<Vec<f64>> {
    let start = format!("| {label} |");
    let rows: Vec<_> = page.lines().filter_map(|line| line.strip_prefix(&start)).collect();
    let [row] = rows[..] else { panic!("{} rows of {label}", rows.len()) };
    let numbers = |cell: &str| {
        cell.split(',').filter_map(|part| part.replace(['*', ' '], "").parse().ok()).collect()
    };
    row.split('|').map(numbers).collect()
}

/// The programs of transformers.json, in the order of the columns of docs/performance.md.
const PROGRAMS: [&str; 3] =
    ["/bitnet-wgpu/f32 attention", "/bitnet-wgpu/f16 attention", "/transformers"];

/// Returns a program's tokens per second in each round on the H200.
fn rounds(results: &Value, program: &str, task: &str) -> Vec<f64> {
    let rounds = results["rounds"].as_array().unwrap().iter();
    rounds
        .map(|round| round.pointer(&format!("{program}/{task}")).unwrap().as_f64().unwrap())
        .collect()
}

#[test]
fn tables_of_speed_show_recorded_results() {
    let (results, page) = (results("transformers"), text("docs/performance.md"));
    for (label, task) in [
        ("prefill, 128 tokens", "prefill/128"),
        ("prefill, 512 tokens", "prefill/512"),
        ("prefill, 2048 tokens", "prefill/2048"),
        ("decode, after 0 tokens", "decode/0"),
        ("decode, after 256", "decode/256"),
        ("decode, after 2048", "decode/2048"),
    ] {
        let cells = row(&page, label);
        for (shown, program) in cells.iter().zip(PROGRAMS) {
            // Decoding is not shown with f16 attention, which is for prompts.
            if !(shown.is_empty() && program == PROGRAMS[1]) {
                let recorded = rounds(&results, program, task);
                let recorded: Vec<_> = recorded.into_iter().map(f64::round).collect();
                assert_eq!(shown, &recorded, "{label} of {program}");
            }
        }
    }
}

#[test]
fn readme_shows_the_better_of_two_rounds() {
    let (results, page) = (results("transformers"), text("README.md"));
    for (label, task) in [
        ("prefill, 128 tokens", "prefill/128"),
        ("prefill, 512 tokens", "prefill/512"),
        ("prefill, 2048 tokens", "prefill/2048"),
        ("decode, empty context", "decode/0"),
        ("decode, after 2048 tokens", "decode/2048"),
    ] {
        let row = row(&page, label);
        assert!(row.len() >= 3, "{label}: {row:?}");
        for (shown, program) in row.iter().zip(PROGRAMS) {
            // Decoding has no figure of its own for f16 attention.
            if shown.is_empty() && program == PROGRAMS[1] {
                continue;
            }
            let best = rounds(&results, program, task).into_iter().fold(0.0, f64::max);
            approx::assert_relative_eq!(shown[0], best, max_relative = 0.01);
        }
    }
}

#[test]
fn table_of_cpus_shows_recorded_results() {
    let (results, page) = (results("cpu"), text("docs/performance.md"));
    for (label, model, task) in [
        ("22 M, prefill 128", "22m", "prefill 128"),
        ("22 M, decode after 440", "22m", "decode after 440"),
        ("700 M, prefill 128", "700m", "prefill 128"),
        ("700 M, prefill 512", "700m", "prefill 512"),
        ("700 M, decode after 1", "700m", "decode after 1"),
        ("700 M, decode after 440", "700m", "decode after 440"),
    ] {
        let runs = results["results"].as_array().unwrap();
        let run = runs.iter().find(|run| run["model"] == model && run["threads"] == 2).unwrap();
        let row = row(&page, label);
        assert!(row.len() >= 3, "{label}: {row:?}");
        for (shown, program) in row.iter().zip(["ours", "llama.cpp", "bitnet.cpp"]) {
            assert_eq!(shown[..], [run["medians"][program][task].as_f64().unwrap()], "{label}");
        }
    }
}

/// Returns what is in backticks.
fn names(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn pages_name_features_and_the_oldest_rust() {
    let (manifest, readme) = (text("Cargo.toml"), text("README.md"));
    let section = |name: &str| {
        manifest.split(&format!("\n[{name}]\n")).nth(1).unwrap().split("\n[").next().unwrap()
    };
    let features: BTreeSet<_> = section("features")
        .lines()
        .filter_map(|line| line.split_once(" = ").map(|(name, _)| name))
        .filter(|&name| name != "default")
        .collect();
    let page = text("docs/reference/features.md");
    let table = page.split("| `bitnet-wgpu-cli` |").next().unwrap();
    let listed: BTreeSet<_> = table
        .lines()
        .filter(|line| line.starts_with('|'))
        .filter_map(|line| line.split('`').nth(if line.contains("`bitnet-wgpu`") { 3 } else { 1 }))
        .collect();
    assert_eq!(listed, features, "docs/reference/features.md");
    let line = readme.lines().find(|line| line.contains("Features: ")).unwrap();
    let listed = names(line.split("Features: ").nth(1).unwrap());
    assert!(!listed.is_empty() && listed.is_subset(&features), "README.md: {listed:?}");

    let rust = section("package").split("rust-version = \"").nth(1).unwrap().split('"').next();
    let rust = rust.unwrap();
    assert!(readme.contains(&format!("Rust {rust} or newer")), "README.md: Rust {rust}");
    assert!(text("CONTRIBUTING.md").contains(&format!("supports Rust {rust};")), "CONTRIBUTING.md");
    let workflow = text(".github/workflows/ci.yml");
    assert!(workflow.contains(&format!("rust:{rust}-bookworm")), "ci.yml tests another Rust");
}

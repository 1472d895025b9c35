//! `bitnet doctor`

use crate::{fails, json, succeeds};

#[test]
#[ignore = "needs a GPU"]
fn doctor_passes_on_this_device() {
    let report = json(&["doctor"]);
    let (kernels, cases) = (&report["kernels"], &report["cases"]);
    assert_eq!(report["passed"], true, "{report}");
    assert!(
        kernels["variants"].as_u64() > Some(1000) && cases["cases"].as_u64() > Some(80),
        "{report}"
    );
    assert!(
        [kernels, cases].iter().all(|part| part["failures"].as_array().is_some_and(Vec::is_empty)),
        "{report}"
    );
    assert!(
        report["verdict"]
            .as_str()
            .is_some_and(|line| line.starts_with("all ") && line.ends_with(" cases agree")),
        "{report}"
    );
    // A variant that cannot run here says why.
    let elsewhere = kernels["not_for_this_device"].as_array().unwrap();
    assert!(
        elsewhere.iter().all(|variant| variant["why"].as_str().is_some_and(|why| !why.is_empty())),
        "{report}"
    );
    let probes = report["arithmetic"]["probes"].as_array().unwrap();
    assert!(
        probes.len() > 10
            && probes.iter().all(|probe| probe["findings"]["WGSL"]["as_kernels_rely_on"] == true),
        "{report}"
    );
    assert!(
        report["submissions"]["submissions"].as_array().is_some_and(|all| all.len() == 2),
        "{report}"
    );
    assert!(report["memory"]["tried_bytes"].as_u64() > Some(0), "{report}");
}

#[test]
#[ignore = "needs a GPU"]
fn doctor_names_the_adapter_that_is_missing() {
    fails(&["doctor", "--adapter", "no such GPU"], "no such GPU");
}

#[test]
fn help_of_doctor_says_what_it_does() {
    let help = succeeds(&["help", "doctor"]);
    assert!(
        help.contains("Compiles all kernels")
            && help.contains("--adapter <NAME|NUMBER>")
            && help.contains("--json"),
        "{help}"
    );
}

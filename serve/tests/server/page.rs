//! The chat page.

use crate::{Served, client::get, cpu};

#[test]
fn page_loads_nothing_and_builds_no_markup() {
    let server = Served::new(&cpu(), 1, 1, |options| options.keys(["sesame"]));
    let answer = get(&server.address, "/");
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, Some("text/html; charset=utf-8"))
    );
    let policy = answer.header("content-security-policy").unwrap().to_owned();
    let page = answer.text();
    let nonce = policy.split("'nonce-").nth(1).and_then(|rest| rest.split('\'').next()).unwrap();
    assert!(nonce.len() == 32 && policy.contains("default-src 'none'"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
    assert_eq!(page.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
    assert_eq!(page.matches("<script").count() + page.matches("<style").count(), 2);
    // An answer reaches the page as text only.
    for way in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "DOMParser",
        "setAttribute",
        "src=",
        "http://",
        "https://",
        "{nonce}",
    ] {
        assert!(!page.contains(way), "{way}");
    }
    let again = get(&server.address, "/");
    assert_ne!(again.header("content-security-policy"), Some(&*policy), "a nonce is used once");
}

#[test]
fn page_can_be_off() {
    let off = Served::new(&cpu(), 1, 1, |options| options.page(false));
    assert_eq!(get(&off.address, "/").status, 404);
    let keys = Served::new(&cpu(), 1, 1, |options| options.page(false).keys(["sesame"]));
    assert_eq!(get(&keys.address, "/").status, 401);
}

//! Says that the crate was compiled without optimization.

use std::sync::Once;

/// What a debug build of an app lacks.
const WARNING: &str = "bitnet-wgpu was compiled without optimization and is some 200 times slower on the CPU. \
    In the Cargo.toml of the workspace: [profile.dev.package.\"*\"] opt-level = 3";

/// Logs a warning if the crate was compiled without optimization, once in a process.
pub(super) fn warn() {
    static SAID: Once = Once::new();
    if cfg!(unoptimized) {
        SAID.call_once(|| log::warn!("{WARNING}"));
    }
}

#[cfg(test)]
mod tests {
    use super::WARNING;

    #[test]
    fn pages_have_the_lines_of_the_warning() {
        let lines = "[profile.dev.package.\"*\"]\nopt-level = 3\n";
        assert!(WARNING.ends_with(lines.replace('\n', " ").trim()));
        for page in
            [include_str!("../../../README.md"), include_str!("../../../docs/guide/library.md")]
        {
            assert!(page.contains(lines));
        }
    }
}

//! Files that are something else than their names say.

use super::format_error::FormatError;

/// First bytes of a file that [`stand_in`] looks at.
pub(crate) const START: usize = 256;

/// Returns what a file is by its first bytes, if it is one that people often have in place of a
/// model's file: what a download left there, or another format.
pub(crate) fn stand_in(start: &[u8]) -> Option<FormatError> {
    let words = start.trim_ascii_start();
    let begins = |text: &str| {
        words.get(..text.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(text.as_bytes()))
    };
    let damaged = |what: &str| Some(FormatError::Damaged(what.into()));
    let unsupported = |what: &str| Some(FormatError::Unsupported(what.into()));
    if begins("version https://git-lfs.github.com/") {
        return damaged(
            "is a Git LFS pointer, not the file itself: `git lfs pull` in its folder downloads the file",
        );
    }
    if begins("<!doctype html") || begins("<html") {
        return damaged(
            "is a web page, not the file itself: on the Hugging Face hub, links with /resolve/ give files, and links with /blob/ give pages",
        );
    }
    if start.starts_with(&[0xff, 0xfe]) || start.starts_with(&[0xfe, 0xff]) {
        return unsupported("is text in UTF-16: save it as UTF-8");
    }
    // A zip archive, or a pickle of protocol 2 to 5.
    if start.starts_with(b"PK\x03\x04") || matches!(start, [0x80, 2..=5, ..]) {
        return unsupported(PYTORCH);
    }
    None
}

/// What is wrong with a checkpoint of PyTorch, and what helps.
pub(super) const PYTORCH: &str = "is a PyTorch checkpoint (pickle), which is not supported: save it as safetensors, with `save_pretrained(FOLDER)` of a recent transformers";

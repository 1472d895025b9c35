//! Submissions that a graphics debugger captures, RenderDoc or Xcode. An environment variable says
//! which; wgpu tells the debugger, if one is attached. Metal also writes captures to a file.

use super::{environment::environment, metal};
use crate::error::{Error, Result};
use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// `N` or `N:COUNT`: the N-th submission, counted from 1, or as many from it on.
const VARIABLE: &str = "BITNET_WGPU_CAPTURE";
/// A file that Metal writes the capture to, for Xcode.
const FILE: &str = "BITNET_WGPU_CAPTURE_FILE";

/// A debugger is a process's, not a device's, and has one capture at a time.
static CAPTURING: Mutex<()> = Mutex::new(());

/// Which submissions of a device are captured.
pub struct Captures {
    /// By their numbers, from 0.
    range: Range<u64>,
    file: Option<PathBuf>,
    submitted: AtomicU64,
}

impl Captures {
    /// What the environment asks for.
    pub fn asked() -> Result<Option<Self>> {
        let (value, file) = (environment(VARIABLE), environment(FILE));
        let invalid = |what: String| Error::Invalid { op: "capture", what };
        let Some(value) = value else {
            return match file {
                Some(_) => {
                    Err(invalid(format!("{FILE} needs {VARIABLE}, the number of a submission")))
                }
                None => Ok(None),
            };
        };
        let range = parse(&value).ok_or_else(|| {
            invalid(format!(
                "{VARIABLE} is `{value}`; N or N:COUNT is needed: the first submission, from 1, and how many"
            ))
        })?;
        if file.is_some() && !cfg!(target_vendor = "apple") {
            return Err(invalid(format!("{FILE} is for Metal; RenderDoc names its files itself")));
        }
        // Metal writes no capture over another.
        if file.is_some() && range.end - range.start > 1 {
            return Err(invalid(format!(
                "{FILE} takes a single submission; {VARIABLE} is `{value}`"
            )));
        }
        Ok(Some(Self { range, file: file.map(PathBuf::from), submitted: AtomicU64::new(0) }))
    }

    /// Encodes and submits by `submit`, which is captured if it is its turn. What other threads do
    /// meanwhile is in the capture too.
    pub fn around<R>(&self, device: &wgpu::Device, label: &str, submit: impl FnOnce() -> R) -> R {
        let number = self.submitted.fetch_add(1, Ordering::Relaxed);
        let _capture = self.range.contains(&number).then(|| {
            log::info!("capturing submission {}, `{label}`", number + 1);
            Capture::begin(device, self.file.as_deref())
        });
        submit()
    }
}

fn parse(value: &str) -> Option<Range<u64>> {
    let (number, count) = value.split_once(':').unwrap_or((value, "1"));
    let (number, count) = (number.parse::<u64>().ok()?, count.parse::<u64>().ok()?);
    let first = number.checked_sub(1)?;
    Some(first..first.checked_add(count)?).filter(|range| !range.is_empty())
}

/// Who captures.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Debugger,
    /// Metal, to a file.
    Metal,
    /// Nobody, since Metal refused.
    Nobody,
}

/// Ends when it is dropped, by a panic too.
struct Capture<'a> {
    device: &'a wgpu::Device,
    by: By,
    #[allow(dead_code, reason = "held")]
    only: MutexGuard<'static, ()>,
}

impl<'a> Capture<'a> {
    #[allow(unsafe_code)]
    fn begin(device: &'a wgpu::Device, file: Option<&Path>) -> Self {
        let only = CAPTURING.lock().unwrap_or_else(PoisonError::into_inner);
        let by = match file.map(|file| (file, metal::begin_capture(device, file))) {
            None => By::Debugger,
            Some((_, Ok(()))) => By::Metal,
            Some((file, Err(error))) => {
                log::error!("{}: no capture: {error} (is MTL_CAPTURE_ENABLED=1?)", file.display());
                By::Nobody
            }
        };
        if by == By::Debugger {
            // SAFETY: the lock keeps off all other captures of this crate. Whoever sets the variable
            // has none of their own, and trusts the debugger.
            unsafe { device.start_graphics_debugger_capture() };
        }
        Self { device, by, only }
    }
}

impl Drop for Capture<'_> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        match self.by {
            // SAFETY: this has begun one.
            By::Debugger => unsafe { self.device.stop_graphics_debugger_capture() },
            By::Metal => metal::end_capture(),
            By::Nobody => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_says_which_submissions() {
        let asked = ["1", "7", "1:3", "12:4", "18446744073709551615"].map(parse);
        assert_eq!(
            asked,
            [Some(0..1), Some(6..7), Some(0..3), Some(11..15), Some(u64::MAX - 1..u64::MAX)]
        );
        for wrong in [
            "",
            "0",
            "0:2",
            "3:0",
            "1:",
            ":1",
            "-1",
            "1:2:3",
            "one",
            "1, 2",
            "18446744073709551615:2",
            "18446744073709551616",
        ] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}

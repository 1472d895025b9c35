//! The log on the standard error output, and what of it a piece of work has caused.

use log::{Level, Log, Metadata, Record};
use std::cell::RefCell;

thread_local! {
    /// Errors that were logged on this thread since [`caught`] began; `None` where nobody catches them.
    static CAUGHT: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// A logger that hands errors to [`caught`], and the rest to another.
struct Catching(env_logger::Logger);

impl Log for Catching {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.0.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        let error = record.level() == Level::Error;
        let taken = error && CAUGHT.with_borrow_mut(|caught| caught.as_mut().map(|all| all.push(record.args().to_string())).is_some());
        if !taken {
            self.0.log(record);
        }
    }

    fn flush(&self) {
        self.0.flush();
    }
}

/// Starts the log. The environment's `RUST_LOG` says what is in it.
pub fn init() {
    let logger = env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("error,bitnet_wgpu=warn")).build();
    log::set_max_level(logger.filter());
    // Another logger may be there, of a program that calls these commands.
    let _ = log::set_boxed_logger(Box::new(Catching(logger)));
}

/// Runs `work` and returns the errors that it has logged on this thread. wgpu logs what Metal's compiler says, and returns an error without it.
pub fn caught<R>(work: impl FnOnce() -> R) -> (R, Vec<String>) {
    CAUGHT.set(Some(Vec::new()));
    let result = work();
    (result, CAUGHT.take().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_thread_are_caught() {
        init();
        let (result, errors) = caught(|| {
            log::error!("error: use of undeclared identifier 'quad'");
            log::warn!("not an error");
            7
        });
        assert_eq!((result, errors), (7, vec!["error: use of undeclared identifier 'quad'".to_owned()]));
        assert_eq!(caught(|| ()).1, Vec::<String>::new());
    }
}

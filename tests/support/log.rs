//! What is logged: shown with a failing test, and kept for whoever asks.

use log::{LevelFilter, Log, Metadata, Record};
use std::{cell::RefCell, sync::Once};

thread_local! {
    /// What this thread has logged, while somebody asks.
    static WARNINGS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

struct Logger(env_logger::Logger);

impl Log for Logger {
    /// A text is scored after loading only where somebody asks for warnings.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !metadata.target().ends_with("text_check") || WARNINGS.with_borrow(Option::is_some)
    }

    fn log(&self, record: &Record<'_>) {
        if record.level() == log::Level::Warn {
            WARNINGS.with_borrow_mut(|kept| {
                kept.iter_mut().for_each(|kept| kept.push(record.args().to_string()))
            });
        }
        if self.0.matches(record) {
            self.0.log(record);
        }
    }

    fn flush(&self) {}
}

/// Begins to log, once for a test binary.
pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let inner = env_logger::builder().is_test(true).build();
        log::set_max_level(inner.filter().max(LevelFilter::Warn));
        let _ = log::set_boxed_logger(Box::new(Logger(inner)));
    });
}

/// The warnings that `run` gives on this thread.
pub fn warnings(run: impl FnOnce()) -> Vec<String> {
    init();
    WARNINGS.set(Some(Vec::new()));
    run();
    WARNINGS.take().unwrap_or_default()
}

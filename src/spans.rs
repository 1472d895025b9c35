//! Spans of the crate `tracing`, for apps that ask for them by the feature of that name.

/// A span until the end of the block: its name, and fields as [`tracing::debug_span`] takes them.
/// Without the feature, nothing.
macro_rules! span {
    ($($what:tt)+) => {
        #[cfg(feature = "tracing")]
        let _span = tracing::debug_span!($($what)+).entered();
    };
}

pub(crate) use span;

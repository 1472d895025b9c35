//! Spans for apps that use the crate `tracing`. One test alone: a process keeps what the first
//! subscriber wants of a span for all threads.

use bitnet_wgpu::{
    internals::ModelInternals as _,
    model::{Model, SessionOptions},
};
use std::sync::{Arc, Mutex, MutexGuard};
use support::{block_on, context, own_process};
use tracing::{
    Event, Metadata, Subscriber,
    span::{Attributes, Id, Record},
};

/// Notes which spans are entered and left.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Noted>>);

#[derive(Default)]
struct Noted {
    /// By their ids, which begin at 1.
    names: Vec<&'static str>,
    events: Vec<String>,
}

impl Spans {
    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap()
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("bitnet_wgpu")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut noted = self.noted();
        noted.names.push(span.metadata().name());
        Id::from_u64(noted.names.len() as u64)
    }

    fn enter(&self, span: &Id) {
        let mut noted = self.noted();
        let entered = format!("+{}", noted.names[span.into_u64() as usize - 1]);
        noted.events.push(entered);
    }

    fn exit(&self, _: &Id) {
        self.noted().events.push("-".into());
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}
}

#[test]
fn apps_that_use_tracing_get_spans() {
    const OWN: &str = "BITNET_TEST_SPANS";
    // tracing asks about a place in the code once: other threads without a subscriber would answer
    // for all.
    if std::env::var_os(OWN).is_none() {
        let output = own_process("", module_path!(), "apps_that_use_tracing_get_spans")
            .env(OWN, "1")
            .output()
            .unwrap();
        assert!(
            output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"),
            "{output:?}"
        );
        return;
    }
    let (spans, context) = (Spans::default(), context());
    tracing::subscriber::with_default(spans.clone(), || {
        let model =
            Model::builder(support::data("models").join("odd")).device(context).build().unwrap();
        let mut session = model.session(SessionOptions::new(1, 5)).unwrap();
        spans.noted().events.push("session".into());
        block_on(session.decode(&[1])).unwrap();
        model.record_step(1, 1).unwrap().submit().unwrap().wait().unwrap();
    });
    let noted = spans.noted().events.join(" ");
    // Counters are cleared once for all layers. A step is submitted while it is recorded, here
    // after each of two layers, and then the rest of it; what is only recorded is not.
    assert!(
        noted.starts_with("+load ")
            && noted
                .contains(" session +step +record +submit - +submit - +submit - - +submit - - "),
        "{noted}"
    );
    assert!(noted.ends_with(" +record +submit - - +submit - +wait -"), "{noted}");
    assert_eq!(noted.matches('+').count(), noted.matches('-').count(), "{noted}");
}

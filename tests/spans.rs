//! Spans for apps that use the crate `tracing`. One test alone: a process keeps what the first subscriber wants of a span for all threads.

use bitnet_wgpu::model::{Model, SessionOptions};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};
use support::{block_on, context};
use tracing::{
    Event, Metadata, Subscriber,
    span::{Attributes, Id, Record},
};

/// Notes which spans are entered and left.
#[derive(Clone, Default)]
struct Spans(Arc<(AtomicU64, Mutex<Vec<(u64, &'static str)>>, Mutex<Vec<String>>)>);

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("bitnet_wgpu")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = self.0.0.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.1.lock().unwrap().push((id, span.metadata().name()));
        Id::from_u64(id)
    }

    fn enter(&self, span: &Id) {
        let name = self.0.1.lock().unwrap().iter().find(|known| known.0 == span.into_u64()).unwrap().1;
        self.0.2.lock().unwrap().push(format!("+{name}"));
    }

    fn exit(&self, _: &Id) {
        self.0.2.lock().unwrap().push("-".into());
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}
}

#[test]
fn apps_that_use_tracing_get_spans() {
    let (spans, context) = (Spans::default(), context());
    tracing::subscriber::with_default(spans.clone(), || {
        let model = Model::load(context, support::data("models").join("odd")).unwrap();
        let mut session = model.session(SessionOptions::new(1, 5)).unwrap();
        spans.0.2.lock().unwrap().push("session".into());
        block_on(session.decode(&[1])).unwrap();
        model.record_step(1, 1).unwrap().submit().unwrap().wait().unwrap();
    });
    let noted = spans.0.2.lock().unwrap().join(" ");
    // A step that is run once is submitted while it is recorded.
    assert!(noted.starts_with("+load ") && noted.contains(" session +step +record +submit - +submit - - +submit - - "), "{noted}");
    assert!(noted.contains(" +record +submit -") && noted.ends_with(" - +submit - +wait -"), "{noted}");
    assert_eq!(noted.matches('+').count(), noted.matches('-').count(), "{noted}");
}

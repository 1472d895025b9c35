//! Metrics in the text format of Prometheus: `/metrics`.

use crate::turns::Counts;
use bitnet_wgpu::model::BatchOptions;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

/// Upper bounds of the buckets of the time to the first token, in seconds: from a cached prompt on
/// a GPU to a full queue on a CPU.
const BOUNDS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Counters of a server.
#[derive(Default)]
pub struct Metrics {
    /// Requests by route and status.
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    /// Tokens of the sequences that run.
    kv_tokens: AtomicUsize,
    first_token: Mutex<Histogram>,
}

#[derive(Default)]
struct Histogram {
    /// Observations up to each bound, and beyond the last.
    counts: [u64; BOUNDS.len() + 1],
    sum: f64,
}

/// A sequence that runs. Its tokens leave the KV cache's count on drop.
pub struct Sequence {
    metrics: Arc<Metrics>,
    prompt: usize,
    generated: usize,
    arrival: Instant,
}

impl Metrics {
    /// Counts a request that was answered.
    pub fn request(&self, route: &'static str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((route, status)).or_default() += 1;
    }

    /// Counts a sequence with a prompt of `prompt` tokens, whose request came at `arrival`.
    pub fn sequence(self: &Arc<Self>, prompt: usize, arrival: Instant) -> Sequence {
        self.kv_tokens.fetch_add(prompt, Relaxed);
        Sequence { metrics: self.clone(), prompt, generated: 0, arrival }
    }

    /// Writes all metrics of a server.
    pub fn text(&self, load: Counts, room: &BatchOptions) -> String {
        let mut text = Text(String::new());
        text.begin("bitnet_requests_total", "counter", "Requests by route and status.");
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for ((route, status), count) in requests {
            let labels = format!("{{route=\"{route}\",status=\"{status}\"}}");
            text.line("bitnet_requests_total", &labels, count as f64);
        }
        let counters = [
            ("prompt", "Tokens of prompts.", &self.prompt_tokens),
            ("cached_prompt", "Tokens of prompts that were cached.", &self.cached_tokens),
            ("generated", "Tokens that were generated.", &self.generated_tokens),
        ];
        for (name, help, counter) in counters {
            let name = format!("bitnet_{name}_tokens_total");
            text.single(&name, "counter", help, counter.load(Relaxed) as f64);
        }
        let tokens = self.kv_tokens.load(Relaxed) as f64;
        let capacity = room.slots().saturating_mul(room.capacity()).max(1) as f64;
        let gauges = [
            ("requests_running", "Sequences that are computed.", load.running as f64),
            ("requests_waiting", "Sequences that wait for a slot.", load.waiting as f64),
            ("slots", "Sequences that can be computed at a time.", room.slots() as f64),
            ("queue_size", "Sequences that may wait for a slot.", room.get_queue() as f64),
            (
                "kv_cache_usage_ratio",
                "Share of the KV cache that running sequences use.",
                tokens / capacity,
            ),
        ];
        for (name, help, value) in gauges {
            text.single(&format!("bitnet_{name}"), "gauge", help, value);
        }
        text.histogram(&self.first_token.lock().unwrap_or_else(PoisonError::into_inner));
        text.0
    }
}

impl Sequence {
    /// Counts a token that was generated; `cached` tokens of the prompt were known before.
    pub fn generated(&mut self, cached: usize) {
        let metrics = &self.metrics;
        if self.generated == 0 {
            metrics.prompt_tokens.fetch_add(self.prompt as u64, Relaxed);
            metrics.cached_tokens.fetch_add(cached as u64, Relaxed);
            let seconds = self.arrival.elapsed().as_secs_f64();
            metrics.first_token.lock().unwrap_or_else(PoisonError::into_inner).observe(seconds);
        }
        self.generated += 1;
        metrics.generated_tokens.fetch_add(1, Relaxed);
        metrics.kv_tokens.fetch_add(1, Relaxed);
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        self.metrics.kv_tokens.fetch_sub(self.prompt + self.generated, Relaxed);
    }
}

impl Histogram {
    fn observe(&mut self, seconds: f64) {
        let bucket = BOUNDS.iter().position(|&bound| seconds <= bound).unwrap_or(BOUNDS.len());
        self.counts[bucket] += 1;
        self.sum += seconds;
    }
}

/// The text of metrics.
struct Text(String);

impl Text {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.begin(name, kind, help);
        self.line(name, "", value);
    }

    fn histogram(&mut self, histogram: &Histogram) {
        let name = "bitnet_time_to_first_token_seconds";
        self.begin(name, "histogram", "Time from the complete request to its first token.");
        let mut count = 0;
        let bounds = BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, more) in bounds.zip(histogram.counts) {
            count += more;
            let labels = format!("{{le=\"{bound}\"}}");
            self.line(&format!("{name}_bucket"), &labels, count as f64);
        }
        self.line(&format!("{name}_sum"), "", histogram.sum);
        self.line(&format!("{name}_count"), "", count as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_buckets_are_cumulative() {
        let mut histogram = Histogram::default();
        [0.004, 0.01, 0.2, 100.0].into_iter().for_each(|seconds| histogram.observe(seconds));
        let mut text = Text(String::new());
        text.histogram(&histogram);
        for (bound, count) in [("0.01", 2), ("0.1", 2), ("0.25", 3), ("60", 3), ("+Inf", 4)] {
            let line = format!("_bucket{{le=\"{bound}\"}} {count}\n");
            assert!(text.0.contains(&line), "{line}{}", text.0);
        }
        assert!(text.0.contains("_count 4\n") && text.0.contains("_sum 100.214"), "{}", text.0);
    }
}

//! How long kernels take, and by which clock.

use crate::{
    error::{Error, Result},
    gpu::{
        device::scopes::guarded,
        execute::{commands::MOST_PASSES, submissions::SubmissionPart},
        recording::{Recording, encode},
        transfer::readback,
    },
};
use std::{fmt, time::Duration};

/// Where a time comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clock {
    /// The GPU's timestamps, at the bounds of a compute pass.
    Gpu,
    /// The host's clock around submission and completion: an upper bound, with the cost of both in
    /// it.
    Host,
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Gpu => "GPU",
            Self::Host => "host",
        })
    }
}

/// One kernel's share of a [`Profile`].
#[derive(Clone, Debug)]
pub struct StepTime {
    /// The kernel.
    pub kernel: &'static str,
    /// How long it ran.
    pub time: Duration,
}

/// The time of every step of a recording.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The clock behind every time in it.
    pub clock: Clock,
    /// In recorded order.
    pub steps: Vec<StepTime>,
}

impl Profile {
    /// The sum over all steps.
    pub fn total(&self) -> Duration {
        self.steps.iter().map(|step| step.time).sum()
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        for step in &self.steps {
            writeln!(f, "{:>10.1} µs  {}", us(step.time), step.kernel)?;
        }
        write!(f, "{:>10.1} µs  in total, {} clock", us(self.total()), self.clock)
    }
}

impl Recording {
    /// Runs it once with every step in a pass of its own, and times each; what is copied between
    /// them, where a model's layers are offloaded, is in no step's time by the GPU's clock, and in
    /// the next step's by the host's. GPUs that time only pass bounds (Apple's) can do no finer;
    /// where timestamps are missing or read zero (macOS 26, gfx-rs/wgpu #9414; seen when a context
    /// is made), each step is submitted and waited for alone, which blocks, and [`Profile::clock`]
    /// says so.
    ///
    /// # Errors
    /// What the device reports.
    pub async fn profile(&self) -> Result<Profile> {
        let time = |times: Vec<Duration>| {
            let named = self.steps.iter().zip(times);
            named.map(|(step, time)| StepTime { kernel: step.kernel.name, time }).collect()
        };
        let groups: Vec<_> = (0..self.steps.len()).map(|i| i..i + 1).collect();
        if let Some(times) = self.timestamps(&groups, 1).await? {
            return Ok(Profile { clock: Clock::Gpu, steps: time(times) });
        }
        let times =
            groups.iter().map(|group| self.host_time(group.clone(), 1)).collect::<Result<_>>()?;
        Ok(Profile { clock: Clock::Host, steps: time(times) })
    }

    /// Runs it `times` times in one submission and returns the mean time of one run: what a
    /// benchmark reports. Waits for completion; the caller warms up. Where a model's layers are
    /// offloaded, it is timed by the host's clock, since copies are outside of passes.
    ///
    /// # Errors
    /// What the device reports.
    pub async fn time(&self, times: u32) -> Result<(Clock, Duration)> {
        let all = 0..self.steps.len();
        if self.uploads.is_empty()
            && let Some(total) = self.timestamps(std::slice::from_ref(&all), times).await?
        {
            return Ok((Clock::Gpu, total[0] / times.max(1)));
        }
        Ok((Clock::Host, self.host_time(all, times)? / times.max(1)))
    }

    /// The time of each group of steps, a pass a group; `None` where the GPU has no usable clock.
    async fn timestamps(
        &self,
        groups: &[std::ops::Range<usize>],
        times: u32,
    ) -> Result<Option<Vec<Duration>>> {
        // wgpu allows 4096 queries in a set.
        if !self.context.capabilities().timestamps || groups.is_empty() || groups.len() > 2048 {
            return Ok(None);
        }
        let (device, count) = (self.context.device(), 2 * groups.len() as u32);
        let descriptor = wgpu::QuerySetDescriptor {
            label: Some("profile"),
            ty: wgpu::QueryType::Timestamp,
            count,
        };
        let queries = guarded(
            device,
            || "making a query set".into(),
            || device.create_query_set(&descriptor),
        )?;
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let ticks = self.context.allocate(8 * u64::from(count), usage, "profile")?;
        let encode_groups = |encoder: &mut wgpu::CommandEncoder,
                             numbers: std::ops::Range<usize>| {
            for (i, group) in (0u32..).zip(groups).skip(numbers.start).take(numbers.len()) {
                self.encode_uploads(encoder, group.start);
                let timestamp_writes = wgpu::ComputePassTimestampWrites {
                    query_set: &queries,
                    beginning_of_pass_write_index: Some(2 * i),
                    end_of_pass_write_index: Some(2 * i + 1),
                };
                let descriptor = wgpu::ComputePassDescriptor {
                    label: Some("profile"),
                    timestamp_writes: Some(timestamp_writes),
                };
                encode(
                    &self.steps[group.clone()],
                    times,
                    &mut encoder.begin_compute_pass(&descriptor),
                );
            }
            if numbers.end == groups.len() {
                encoder.resolve_query_set(&queries, 0..count, &ticks, 0);
            }
        };
        let part = |begin: usize| -> SubmissionPart<'_> {
            let numbers = begin..groups.len().min(begin + MOST_PASSES);
            Box::new(move |commands| encode_groups(commands.encoder, numbers.clone()))
        };
        self.context.submit_parts(
            "profile",
            &(0..groups.len()).step_by(MOST_PASSES).map(part).collect::<Vec<_>>(),
        )?;
        let staging =
            readback::read_after(&self.context, "profile", &[], (&ticks, 0), 8 * u64::from(count))
                .await?;
        let staging = staging.ok_or_else(|| Error::Readback("no timestamps".into()))?;
        let ticks: Vec<u64> = staging.to_vec(count as usize)?;
        let nanoseconds = f64::from(self.context.queue().get_timestamp_period());
        let spans = ticks.chunks(2).map(|pair| pair[1].saturating_sub(pair[0]));
        Ok(Some(
            spans.map(|span| Duration::from_secs_f64(span as f64 * nanoseconds * 1e-9)).collect(),
        ))
    }

    /// Runs it once, and returns whether the GPU's clock moves.
    pub(crate) async fn clock_moves(&self) -> Result<bool> {
        let times = self.timestamps(std::slice::from_ref(&(0..self.steps.len())), 1).await?;
        Ok(times.is_some_and(|times| times.iter().any(|time| !time.is_zero())))
    }

    fn host_time(&self, group: std::ops::Range<usize>, times: u32) -> Result<Duration> {
        let start = std::time::Instant::now();
        let index = self.context.submit_with("profile", |commands| {
            if self.uploads.is_empty() {
                let descriptor =
                    wgpu::ComputePassDescriptor { label: Some("profile"), timestamp_writes: None };
                commands.pass(&descriptor, |pass| encode(&self.steps[group.clone()], times, pass));
            } else {
                (0..times).for_each(|_| self.encode_range(commands, "profile", group.clone()));
            }
        })?;
        self.context.wait(index)?;
        Ok(start.elapsed())
    }
}

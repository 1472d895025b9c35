//! What a call is expected to take on the CPU and on the GPU: from numbers that are measured once,
//! corrected by what calls took.

use std::{ops::RangeInclusive, time::Duration};

/// Where a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The CPU, by [`cpu`](crate::cpu): small calls in this thread, large ones on all cores.
    Cpu,
    /// The kernels, with the transfers there and back.
    Gpu,
}

impl Target {
    fn other(self) -> Self {
        if self == Self::Cpu { Self::Gpu } else { Self::Cpu }
    }
}

/// Why a call runs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// It is expected to take less time than on the other side.
    Expected,
    /// To see what it takes there, which has not been measured for calls of this size, or not for
    /// long.
    Trial,
    /// There is no GPU.
    NoGpu,
    /// The caller says so ([`Auto::always`](super::Auto::always)).
    Always,
}

/// What a call has to do.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Of the CPU: about a nanosecond each, before any has been measured.
    pub operations: usize,
    /// Over the link, there and back.
    pub bytes: usize,
}

/// The way to the GPU and back: what an empty call takes, and what each byte adds, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    pub call: f64,
    pub byte: f64,
}

impl Link {
    pub fn new(call: f64, byte: f64) -> Self {
        Self { call: within(call, &CALLS), byte: within(byte, &BYTES) }
    }

    /// What this many bytes take.
    fn takes(self, bytes: usize) -> f64 {
        self.call + self.byte * bytes as f64
    }
}

/// A decision, and the expectations behind it, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Decision {
    pub target: Target,
    pub why: Why,
    pub cpu: f64,
    pub gpu: Option<f64>,
}

/// Sizes of calls: four for each power of two of their operations, so that those of one size differ
/// by a quarter at most.
const SIZES: usize = 4 * usize::BITS as usize;
/// What a call on the CPU takes, however small, in nanoseconds.
const CALL: f64 = 50.0;
/// The slower side is tried where it is expected to take less than this many times as long as the
/// faster one.
const NEAR: f64 = 2.0;
/// The factor for a size that has not been measured there, since its expectation comes from other
/// sizes: if it is below [`TRY`].
const FAR: f64 = 8.0;
/// An op that has never been measured on a side is tried there if it is expected to take less than
/// this many nanoseconds.
const TRY: f64 = 20e6;
/// This many calls of a size until the slower side is tried again.
pub const AGAIN: u32 = 64;
/// This many measurements of a size are believed; fewer may all have waited for another program,
/// and are made again.
pub const BELIEVED: u8 = 3;

/// What an empty call may take there and back, and what a byte may add: up to a second, and a
/// microsecond.
pub const CALLS: RangeInclusive<f64> = 1.0..=1e9;
pub const BYTES: RangeInclusive<f64> = 0.0..=1e3;
/// What a call may take by what was expected before anything was measured.
pub const FACTORS: RangeInclusive<f32> = 1e-4..=1e6;

/// What calls of an op and a size took on a side.
#[derive(Clone, Copy)]
pub struct Measured {
    /// By what was expected before anything was measured.
    pub factor: f32,
    /// How many calls, up to [`BELIEVED`].
    pub times: u8,
    /// Whether it is from a file, and not measured since.
    pub saved: bool,
}

/// What is known of an op and a size.
#[derive(Clone, Copy, Default)]
pub struct Size {
    pub sides: [Option<Measured>; 2],
    /// Calls since the slower side was tried, up to [`AGAIN`].
    pub calls: u32,
}

/// What is known of an op.
#[derive(Clone)]
pub struct Seen {
    pub sizes: [Size; SIZES],
    /// Whether anything has been measured on this side.
    pub measured: [bool; 2],
    /// Whether it has run on the GPU. The first time its kernels are compiled, and nothing is
    /// learned: a trial is made again.
    compiled: bool,
}

/// What is known of all ops.
#[derive(Clone)]
pub struct Costs {
    pub link: Option<Link>,
    /// Where the link is from a file, this many calls until it is measured again.
    pub doubted: u32,
    pub ops: Vec<Seen>,
}

impl Costs {
    pub fn new(link: Option<Link>, ops: usize) -> Self {
        Self {
            link,
            doubted: 0,
            ops: vec![
                Seen {
                    sizes: [Size::default(); SIZES],
                    measured: [false; 2],
                    compiled: false
                };
                ops
            ],
        }
    }

    /// Returns whether the link should be measured again. Says so once, some calls after it was
    /// read from a file.
    pub fn doubts(&mut self) -> bool {
        let due = self.doubted == 1;
        self.doubted = self.doubted.saturating_sub(1);
        due
    }

    /// Returns whether it is of a machine with such a link.
    pub fn is_of(&self, link: Link) -> bool {
        let near = |saved: Link| {
            [0, 8 << 20]
                .iter()
                .all(|&bytes| (1.0 / FAR..FAR).contains(&(saved.takes(bytes) / link.takes(bytes))))
        };
        self.link.is_some_and(near)
    }

    /// Forgets all that was read if the link is another than that of the file, which is not of this
    /// machine then. Gives whether it did.
    pub fn compare(&mut self, link: Link) -> bool {
        if self.is_of(link) {
            return false;
        }
        *self = Self::new(Some(link), self.ops.len());
        true
    }

    /// Where a call should run.
    pub fn decide(&mut self, op: usize, work: Work) -> Decision {
        let cpu = self.expected(op, work, Target::Cpu);
        if self.link.is_none() {
            return Decision { target: Target::Cpu, why: Why::NoGpu, cpu, gpu: None };
        }
        let gpu = self.expected(op, work, Target::Gpu);
        let (better, best, worse) =
            if gpu < cpu { (Target::Gpu, gpu, cpu) } else { (Target::Cpu, cpu, gpu) };
        let other = better.other();
        let saved = self.nearest(op, work, other).is_some_and(|nearest| nearest.saved);
        let (likely, seen) = (self.before(work, other) < FAR * best, &mut self.ops[op]);
        let (measured, own) = (seen.measured[other as usize], &mut seen.sizes[size(work)]);
        own.calls = AGAIN.min(own.calls + 1);
        let due = match own.sides[other as usize] {
            None => worse < NEAR * best || worse < TRY && (worse < FAR * best || !measured),
            Some(few) if few.times < BELIEVED => likely,
            Some(_) => worse < NEAR * best && own.calls >= AGAIN,
        };
        // A file may say anything of a side that is not taken.
        let due = due || saved && likely && own.calls >= AGAIN;
        if !due {
            return Decision { target: better, why: Why::Expected, cpu, gpu: Some(gpu) };
        }
        own.calls = 0;
        Decision { target: other, why: Why::Trial, cpu, gpu: Some(gpu) }
    }

    /// Learns what a call took, in nanoseconds.
    pub fn learn(&mut self, op: usize, work: Work, target: Target, took: f64) {
        let found = within((took / self.before(work, target)) as f32, &FACTORS);
        let seen = &mut self.ops[op];
        if target == Target::Gpu && !std::mem::replace(&mut seen.compiled, true) {
            seen.sizes[size(work)].calls = AGAIN;
            return;
        }
        seen.measured[target as usize] = true;
        // Something else on the machine makes a call slow, for once or for long; nothing makes one
        // fast.
        let corrected =
            |old: f32| if found < old { found } else { old + (found - old).min(old) * 0.125 };
        let side = &mut seen.sizes[size(work)].sides[target as usize];
        *side = Some(match *side {
            None => Measured { factor: found, times: 1, saved: false },
            Some(Measured { factor, times, saved }) => Measured {
                factor: corrected(factor),
                times: if saved { 1 } else { BELIEVED.min(times + 1) },
                saved: false,
            },
        });
    }

    /// What a call is expected to take: as those of its size did, or of the nearest that has been
    /// measured.
    fn expected(&self, op: usize, work: Work, target: Target) -> f64 {
        let nearest = self.nearest(op, work, target);
        self.before(work, target) * nearest.map_or(1.0, |nearest| f64::from(nearest.factor))
    }

    fn nearest(&self, op: usize, work: Work, target: Target) -> Option<Measured> {
        let (sizes, own) = (&self.ops[op].sizes, size(work));
        let measured = |at: usize| sizes.get(at).and_then(|size| size.sides[target as usize]);
        (0..SIZES)
            .find_map(|away| measured(own.wrapping_sub(away)).or_else(|| measured(own + away)))
    }

    /// Returns what was expected before anything was measured.
    pub fn before(&self, work: Work, target: Target) -> f64 {
        match (target, self.link) {
            (Target::Gpu, Some(link)) => link.takes(work.bytes),
            _ => CALL + work.operations as f64,
        }
    }
}

pub fn size(work: Work) -> usize {
    // Below four there are no quarters.
    let operations = work.operations.max(4);
    let bits = operations.ilog2() as usize;
    4 * (bits - 2) + (operations >> (bits - 2)) % 4
}

/// The fewest operations of a size, below four counted as four.
pub fn least(size: usize) -> usize {
    (4 + size % 4) << (size / 4)
}

/// The nearest number of a range.
fn within<T: PartialOrd + Copy>(value: T, range: &RangeInclusive<T>) -> T {
    if value > *range.end() {
        *range.end()
    } else if value > *range.start() {
        value
    } else {
        *range.start()
    }
}

/// Nanoseconds as a duration.
pub fn duration(nanoseconds: f64) -> Duration {
    Duration::from_nanos(nanoseconds as u64)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub const LINK: Link = Link { call: 60_000.0, byte: 0.1 };

    pub fn work(operations: usize) -> Work {
        Work { operations, bytes: 8 * operations }
    }

    /// What a made-up machine takes, on the CPU and on the GPU.
    pub type Machine = fn(usize) -> [f64; 2];

    /// As expected; a fast and a slow processor; a GPU whose work takes longer than the way to it;
    /// a way that takes less than when it was measured.
    pub const MACHINES: [Machine; 5] = [
        |n| [50.0 + n as f64, 60_000.0 + 0.8 * n as f64],
        |n| [30.0 + 0.05 * n as f64, 60_000.0 + 0.8 * n as f64],
        |n| [80.0 + 40.0 * n as f64, 90_000.0 + 0.9 * n as f64],
        |n| [50.0 + 2.0 * n as f64, 60_000.0 + 5.0 * n as f64],
        |n| [50.0 + 0.5 * n as f64, 30_000.0 + 0.3 * n as f64],
    ];

    /// Sizes in an order that repeats nothing.
    pub fn sizes() -> Vec<usize> {
        (0..90).map(|i| (64.0 * 2f64.powf(f64::from(i * 37 % 90) / 5.0)) as usize).collect()
    }

    /// Calls of all sizes for this many rounds; what they took in the last one, by what the better
    /// side takes.
    pub fn run(costs: &mut Costs, rounds: usize, machine: Machine) -> Vec<f64> {
        let sizes = sizes();
        let (mut last, mut compiled) = (Vec::new(), false);
        for round in 0..rounds {
            for &n in &sizes {
                let decision = costs.decide(0, work(n));
                let [cpu, gpu] = machine(n);
                let took = if decision.target == Target::Cpu { cpu } else { gpu };
                let compiles =
                    decision.target == Target::Gpu && !std::mem::replace(&mut compiled, true);
                costs.learn(0, work(n), decision.target, if compiles { took + 5e6 } else { took });
                if round + 1 == rounds && decision.why != Why::Trial {
                    last.push(took / cpu.min(gpu));
                }
            }
        }
        last
    }

    #[test]
    fn the_better_side_is_found_whatever_was_expected() {
        for (i, machine) in MACHINES.into_iter().enumerate() {
            let last = run(&mut Costs::new(Some(LINK), 1), 6, machine);
            let most = last.iter().copied().fold(0.0, f64::max);
            assert!(last.len() > 60 && most < 1.1, "machine {i}: up to {most} times as long");
        }
    }

    #[test]
    fn a_side_that_has_become_better_is_found() {
        let mut costs = Costs::new(Some(LINK), 2);
        let mut run = |calls: usize, [cpu, gpu]: [f64; 2]| {
            let mut on_gpu = 0;
            for _ in 0..calls {
                let target = costs.decide(1, work(100_000)).target;
                costs.learn(
                    1,
                    work(100_000),
                    target,
                    if target == Target::Cpu { cpu } else { gpu },
                );
                on_gpu += usize::from(target == Target::Gpu);
            }
            on_gpu
        };
        // One that compiles, three that are believed, and one in 64 calls.
        assert_eq!(run(200, [100_000.0, 150_000.0]), 1 + 3 + 3);
        // The processor has other work now.
        assert!(run(400, [200_000.0, 150_000.0]) > 300);
    }

    #[test]
    fn calls_that_wait_for_something_else_mislead_nobody() {
        let mut costs = Costs::new(Some(LINK), 1);
        let mut on = [0; 2];
        for call in 0..2000 {
            // A thousand additions; every fiftieth call, the first of all among them, waits for
            // another program.
            let target = costs.decide(0, work(1000)).target;
            let took = if target == Target::Cpu { 1000.0 } else { 80_000.0 };
            costs.learn(0, work(1000), target, if call % 50 == 0 { took + 4e6 } else { took });
            on[target as usize] += 1;
        }
        assert!(on[0] > 1980, "{on:?}");
    }

    #[test]
    fn the_slower_side_is_tried_rarely() {
        let mut costs = Costs::new(Some(LINK), 2);
        let mut tries = |op: usize, work: Work| {
            let mut on = [0; 2];
            for _ in 0..300 {
                let target = costs.decide(op, work).target;
                costs.learn(
                    op,
                    work,
                    target,
                    if target == Target::Cpu { work.operations as f64 } else { 100_000.0 },
                );
                on[target as usize] += 1;
            }
            on
        };
        // Twice, since the first time compiles.
        assert_eq!(tries(0, work(64)), [298, 2]);
        // A second, as far as is known, where the GPU takes a part of a millisecond.
        assert_eq!(tries(1, Work { operations: 1_000_000_000, bytes: 1_000_000 }), [0, 300]);
    }

    #[test]
    fn sizes_are_quarters_of_powers_of_two() {
        let sizes =
            [0, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 17].map(|operations| size(work(operations)));
        assert_eq!(sizes, [0, 0, 0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8]);
        assert_eq!(
            size(Work { operations: usize::MAX, bytes: 0 }),
            4 * (usize::BITS as usize - 3) + 3
        );
    }

    #[test]
    fn wrong_estimates_of_a_file_are_corrected() {
        for (i, machine) in MACHINES.into_iter().enumerate() {
            let mut honest = Costs::new(Some(LINK), 1);
            run(&mut honest, 6, machine);
            let text = honest.text(&["add"]).unwrap();
            for (side, factor) in [
                (0, *FACTORS.start()),
                (0, *FACTORS.end()),
                (1, *FACTORS.start()),
                (1, *FACTORS.end()),
            ] {
                // Of all sizes, and of one from which others follow.
                for few in [false, true] {
                    let mut lies = Costs::parse(&text, &["add"]).unwrap();
                    let of_side = lies.ops[0]
                        .sizes
                        .iter_mut()
                        .map(|size| &mut size.sides[side])
                        .filter(|side| side.is_some());
                    for (n, measured) in of_side.enumerate() {
                        *measured = Some(Measured { factor, times: BELIEVED, saved: true })
                            .filter(|_| n == 0 || !few);
                    }
                    let lies = lies.text(&["add"]).unwrap();
                    let better = |last: &[f64], processes: &str| {
                        let most = last.iter().copied().fold(0.0, f64::max);
                        assert!(
                            last.len() > 60 && most < 1.1,
                            "machine {i}, {side} {factor}, few: {few}, {processes}: up to {most} times as long"
                        );
                    };
                    better(
                        &run(&mut Costs::parse(&lies, &["add"]).unwrap(), 300, machine),
                        "one process",
                    );
                    let mut text = lies;
                    for _ in 0..60 {
                        let mut costs = Costs::parse(&text, &["add"]).unwrap();
                        run(&mut costs, 5, machine);
                        text = costs.text(&["add"]).unwrap();
                    }
                    better(
                        &run(&mut Costs::parse(&text, &["add"]).unwrap(), 5, machine),
                        "many processes",
                    );
                }
            }
        }
    }

    #[test]
    fn one_slow_call_does_not_restore_wrong_estimates() {
        let mut costs =
            Costs::parse("link 60000 0.1 64\nadd 98304 0 cpu 3 3 gpu 1000000 3\n", &["add"])
                .unwrap();
        let mut on = [0; 2];
        for _ in 0..400 {
            let target = costs.decide(0, work(100_000)).target;
            on[target as usize] += 1;
            // The first call on the GPU compiles, the next waits for another program.
            let gpu = if on[1] == 2 { 4e6 } else { 150_000.0 };
            costs.learn(
                0,
                work(100_000),
                target,
                if target == Target::Cpu { 300_000.0 } else { gpu },
            );
        }
        assert!(on[1] > 200, "{on:?}");
    }

    #[test]
    fn short_processes_find_out_too() {
        let mut text = "link 60000 0.1 64\nadd 98304 0 cpu 3 3 gpu 1000000 3\n".to_owned();
        let mut on = [0; 2];
        for _ in 0..20 {
            // Each compiles anew.
            let mut costs = Costs::parse(&text, &["add"]).unwrap();
            on = [0; 2];
            for _ in 0..20 {
                let target = costs.decide(0, work(100_000)).target;
                costs.learn(
                    0,
                    work(100_000),
                    target,
                    if target == Target::Cpu { 300_000.0 } else { 150_000.0 },
                );
                on[target as usize] += 1;
            }
            text = costs.text(&["add"]).unwrap();
        }
        assert!(on[1] > 15, "{on:?}");
    }

    #[test]
    fn a_way_that_lies_is_found_out() {
        let names = ["add"];
        let saved = || Costs::parse("link 60000 0.1 64\nadd 64 0 cpu 1.5 3\n", &names).unwrap();
        let mut costs = saved();
        assert!((0..40).all(|_| !costs.doubts()));
        // Another process counts on.
        let mut costs = Costs::parse(&costs.text(&names).unwrap(), &names).unwrap();
        assert_eq!((0..200).filter(|_| costs.doubts()).collect::<Vec<_>>(), [23]);
        assert_eq!(costs.text(&names), saved().text(&names));
        assert!((0..200).all(|_| !Costs::new(Some(LINK), 1).doubts()));
        for near in [LINK, Link::new(20_000.0, 0.05), Link::new(300_000.0, 0.5)] {
            let mut costs = saved();
            assert!(!costs.compare(near));
            assert_eq!(costs.text(&names), saved().text(&names));
        }
        for other in [
            Link::new(1_000.0, 0.1),
            Link::new(60_000.0, 10.0),
            Link::new(1e6, 0.1),
            Link::new(60_000.0, 0.001),
        ] {
            let mut costs = saved();
            assert!(costs.compare(other), "{other:?}");
            assert_eq!(costs.text(&names), Costs::new(Some(other), 1).text(&names));
        }
    }

    #[test]
    fn without_a_gpu_there_is_the_processor() {
        let decision = Costs::new(None, 1).decide(0, work(1 << 40));
        assert_eq!((decision.target, decision.why, decision.gpu), (Target::Cpu, Why::NoGpu, None));
    }
}

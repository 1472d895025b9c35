//! How much work an op needs for the GPU to be faster: a bracket for each op, which calls of sizes
//! inside it narrow. Outside of it a decision is two loads.

use super::answer::Target;
use std::{
    array,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Operations that no GPU does in less time than a CPU, since a round trip to it takes as long as
/// tens of thousands.
pub const FEW: usize = 1 << 12;

/// What a call has to do.
#[derive(Clone, Copy)]
pub struct Work {
    /// Numbers that are computed, or products.
    pub operations: usize,
    /// Numbers that go to the GPU and come back.
    pub transfers: usize,
}

/// The crossover of an op, in operations.
struct Bracket {
    /// The most for which the CPU was faster.
    cpu: AtomicUsize,
    /// The fewest for which the GPU was faster.
    gpu: AtomicUsize,
}

impl Bracket {
    fn new() -> Self {
        Self { cpu: FEW.into(), gpu: usize::MAX.into() }
    }

    /// The faster side, where that is known.
    fn decide(&self, operations: usize) -> Option<Target> {
        let (cpu, gpu) = (self.cpu.load(Relaxed), self.gpu.load(Relaxed));
        // Close to a measured size, both sides take about as long. As long as no size is known for
        // which the GPU is faster, a measurement for each doubling is enough.
        let known = gpu != usize::MAX;
        let room = if known { cpu / 4 } else { cpu };
        if operations <= cpu.saturating_add(room) {
            Some(Target::Cpu)
        } else if known && operations >= gpu - gpu / 4 {
            Some(Target::Gpu)
        } else {
            None
        }
    }

    fn learn(&self, operations: usize, faster: Target) {
        match faster {
            Target::Cpu => self.cpu.fetch_max(operations, Relaxed),
            Target::Gpu => self.gpu.fetch_min(operations, Relaxed),
        };
    }
}

/// Classes of operations for each number that is transferred, by powers of two: a product of large
/// matrices has more than one of a matrix and a vector, and crosses over earlier.
const CLASSES: usize = 16;

/// The brackets of all ops.
pub struct Crossings(Vec<[Bracket; CLASSES]>);

impl Crossings {
    pub fn new(ops: usize) -> Self {
        Self((0..ops).map(|_| array::from_fn(|_| Bracket::new())).collect())
    }

    /// The faster side for a call, or `None` where it has to be measured.
    pub fn decide(&self, op: usize, work: Work) -> Option<Target> {
        if work.operations <= FEW {
            return Some(Target::Cpu);
        }
        self.bracket(op, work).decide(work.operations)
    }

    /// Stores which side was faster for a call.
    pub fn learn(&self, op: usize, work: Work, faster: Target) {
        self.bracket(op, work).learn(work.operations, faster);
    }

    fn bracket(&self, op: usize, work: Work) -> &Bracket {
        let each = work.operations / work.transfers.max(1);
        &self.0[op][(each.max(1).ilog2() as usize).min(CLASSES - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations for which each side takes as long, on made-up machines.
    const MACHINES: [usize; 5] = [1, 5_000, 70_000, 12_345_678, usize::MAX];

    fn work(operations: usize) -> Work {
        Work { operations, transfers: 2 * operations }
    }

    /// Sizes in an order that repeats nothing.
    fn sizes() -> impl Iterator<Item = usize> {
        (0..90).map(|i| (64.0 * 2f64.powf(f64::from(i * 37 % 90) / 3.0)) as usize)
    }

    fn faster(operations: usize, crossing: usize) -> Target {
        if operations < crossing { Target::Cpu } else { Target::Gpu }
    }

    #[test]
    fn few_measurements_find_every_crossing() {
        for crossing in MACHINES {
            let (crossings, mut measured) = (Crossings::new(2), 0);
            for n in sizes().chain(sizes()) {
                if crossings.decide(1, work(n)).is_none() {
                    crossings.learn(1, work(n), faster(n, crossing));
                    measured += 1;
                }
            }
            assert!(measured <= 20, "{crossing}: {measured} measurements");
            for n in sizes() {
                let right = crossings.decide(1, work(n)) == Some(faster(n, crossing));
                let near = n as f64 / crossing as f64;
                assert!(right || n <= FEW || (0.75..1.25).contains(&near), "{n} of {crossing}");
                assert!(crossings.decide(0, work(n)).is_none() || n <= 2 * FEW, "ops are mixed");
            }
        }
    }

    #[test]
    fn growing_sizes_are_measured_once_a_doubling() {
        let (crossings, mut measured) = (Crossings::new(1), 0);
        for n in (0..2_000_000).step_by(100) {
            if crossings.decide(0, work(n)).is_none() {
                crossings.learn(0, work(n), Target::Cpu);
                measured += 1;
            }
        }
        // From 2^13 to 2^20.
        assert_eq!(measured, 8);
    }

    #[test]
    fn little_work_is_never_measured() {
        let crossings = Crossings::new(1);
        for transfers in [0, 1, FEW, usize::MAX] {
            let decision = |operations| crossings.decide(0, Work { operations, transfers });
            assert_eq!(decision(0), Some(Target::Cpu));
            assert_eq!(decision(FEW), Some(Target::Cpu));
            assert_eq!(decision(usize::MAX), None);
        }
    }

    #[test]
    fn work_for_each_transfer_has_its_crossing() {
        let crossings = Crossings::new(1);
        let product = Work { operations: 1 << 20, transfers: 1 << 14 };
        crossings.learn(0, product, Target::Gpu);
        assert_eq!(crossings.decide(0, product), Some(Target::Gpu));
        assert_eq!(crossings.decide(0, work(1 << 20)), None);
    }
}

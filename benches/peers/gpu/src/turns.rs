//! Programs that compute the same, in turns.

use std::time::Instant;

/// A round of one takes about this many seconds, and at most this many calls.
const ROUND: f64 = 0.02;
const CALLS: usize = 200;

pub struct Rival<'a> {
    pub name: &'static str,
    /// Computes this many times and waits for the end.
    pub compute: Box<dyn FnMut(usize) + 'a>,
    /// Seconds of a call by the GPU's clock, where it was asked.
    pub gpu: Option<f64>,
}

impl<'a> Rival<'a> {
    pub fn new(name: &'static str, compute: impl FnMut(usize) + 'a) -> Self {
        Self { name, compute: Box::new(compute), gpu: None }
    }
}

/// Seconds of a call in each round.
pub struct Times {
    pub name: &'static str,
    pub rounds: Vec<f64>,
    pub gpu: Option<f64>,
}

impl Times {
    pub fn median(&self) -> f64 {
        median(self.rounds.clone())
    }

    pub fn least(&self) -> f64 {
        self.rounds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// How many times as long as `other` it takes: the median of the rounds' ratios.
    pub fn ratio(&self, other: &Self) -> f64 {
        median(self.rounds.iter().zip(&other.rounds).map(|(a, b)| a / b).collect())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Each computes several times in each round. Of those that share a name, layouts of one program,
/// the faster one is left.
pub fn in_turns(rivals: Vec<Rival<'_>>, rounds: usize) -> Vec<Times> {
    let mut seated: Vec<_> = rivals
        .into_iter()
        .map(|mut rival| {
            // Compiled and tuned.
            (rival.compute)(2);
            let start = Instant::now();
            (rival.compute)(1);
            let calls = ((ROUND / start.elapsed().as_secs_f64()) as usize).clamp(1, CALLS);
            let times = Times { name: rival.name, rounds: Vec::new(), gpu: rival.gpu };
            (rival.compute, calls, times)
        })
        .collect();
    for _ in 0..rounds {
        for (compute, calls, times) in &mut seated {
            let start = Instant::now();
            compute(*calls);
            times.rounds.push(start.elapsed().as_secs_f64() / *calls as f64);
        }
    }
    let mut best: Vec<Times> = Vec::new();
    for (_, _, times) in seated {
        match best.iter_mut().find(|other| other.name == times.name) {
            Some(other) if other.median() <= times.median() => {}
            Some(other) => *other = times,
            None => best.push(times),
        }
    }
    best
}

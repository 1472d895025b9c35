//! Limits on whole kernels of decoding: cycles for each number that is read from memory, in shapes
//! of real models, beside what memory leaves time for.

use crate::{
    listing::Listing,
    loops::{self, Parts},
};

/// GPUs, their cores, and the cycles, summed over all lanes, that they have in the time that their
/// memory takes to deliver two bits.
const GPUS: [(&str, f64, f64); 4] =
    [("M1", 8.0, 4.8), ("M2 Max", 38.0, 4.2), ("M4 Max", 40.0, 3.4), ("M3 Ultra", 80.0, 4.4)];
/// The section of the document that holds the figures.
pub const SECTION: &str = "budgets";

/// A kernel in a shape, as one of its workgroups computes it.
struct Case {
    /// The kernel and its language, as [`Listing::kernel`].
    kernel: &'static str,
    shape: &'static str,
    /// What it reads most of, and how many bits each has in memory.
    unit: &'static str,
    bits: f64,
    /// Threads of a workgroup, and the units that it reads.
    threads: u64,
    units: u64,
    /// How often each loop goes round, in the order of their addresses: of the SIMD-group that
    /// takes longest.
    turns: &'static [u64],
    /// For a kernel with a partial turn that may come last, whether it does.
    last_turn: Option<bool>,
    /// Whether it is a single workgroup, on one core.
    alone: bool,
    /// The limit on cycles a unit.
    most: f64,
}

/// A matrix of ternary weights at two bits: threads of a workgroup, its rows, their columns.
const fn weights(
    kernel: &'static str,
    shape: &'static str,
    [threads, rows, columns]: [u64; 3],
    turns: &'static [u64],
    most: f64,
) -> Case {
    Case {
        kernel,
        shape,
        unit: "weight",
        bits: 2.0,
        threads,
        units: rows * columns,
        turns,
        last_turn: None,
        alone: false,
        most,
    }
}

/// A case of [`weights`] with a 16-bit scale for each 128 weights.
const fn grouped(
    kernel: &'static str,
    shape: &'static str,
    sizes: [u64; 3],
    turns: &'static [u64],
    most: f64,
) -> Case {
    Case { bits: 2.125, ..weights(kernel, shape, sizes, turns, most) }
}

/// [`weights`] of a fused kernel of a decoding step: 256 threads have 64 rows each time, as up to
/// 16 384 rows are given out.
const fn fused(
    kernel: &'static str,
    shape: &'static str,
    columns: u64,
    turns: &'static [u64],
    most: f64,
) -> Case {
    weights(kernel, shape, [256, 64, columns], turns, most)
}

/// The keys and values of a share's 64 positions, heads of 128 numbers; a workgroup that has no new
/// token's.
const fn attention(
    kernel: &'static str,
    shape: &'static str,
    turns: &'static [u64],
    most: f64,
) -> Case {
    Case {
        kernel,
        shape,
        unit: "cached number",
        bits: 16.0,
        threads: 256,
        units: 64 * 128 * 2,
        turns,
        last_turn: None,
        alone: false,
        most,
    }
}

/// A head of 2560 columns: 32 rows for 256 threads.
const fn head(kernel: &'static str, bits: f64, turns: &'static [u64], most: f64) -> Case {
    Case {
        kernel,
        shape: "k = 2560",
        unit: "weight",
        bits,
        threads: 256,
        units: 32 * 2560,
        turns,
        last_turn: None,
        alone: false,
        most,
    }
}

/// The last norm of 2560 numbers, which are read with their gains and written.
const fn last_norm(kernel: &'static str, turns: &'static [u64], most: f64) -> Case {
    Case {
        kernel,
        shape: "k = 2560",
        unit: "number",
        bits: 96.0,
        threads: 256,
        units: 2560,
        turns,
        last_turn: None,
        alone: true,
        most,
    }
}

const CASES: &[Case] = &[
    Case {
        last_turn: Some(false),
        ..weights("bitlinear_gemv_f16 WGSL", "k = 2560", [32, 8, 2560], &[1, 5], 2.00)
    },
    Case {
        last_turn: Some(true),
        ..weights("bitlinear_gemv_f16 WGSL", "k = 6912", [32, 8, 6912], &[1, 13], 1.86)
    },
    weights("bitlinear_gemv_f16 MSL", "k = 2560", [32, 8, 2560], &[5], 1.99),
    weights("bitlinear_gemv_f16 MSL", "k = 6912", [32, 8, 6912], &[14], 1.84),
    fused("norm_bitlinear_f16 WGSL", "k = 2560", 2560, &[1, 5], 3.61),
    fused("norm_bitlinear_f16 MSL", "k = 2560", 2560, &[1, 5], 3.34),
    fused("norm_bitlinear_f16_wide WGSL", "k = 6912", 6912, &[1, 14], 2.93),
    fused("norm_bitlinear_f16_wide MSL", "k = 6912", 6912, &[1, 14], 2.54),
    fused("norm_bitlinear_relu2_f16 WGSL", "k = 2560", 2560, &[1, 5], 3.83),
    fused("norm_bitlinear_relu2_f16 MSL", "k = 2560", 2560, &[1, 5], 3.41),
    fused("norm_bitlinear_relu2_f16_wide WGSL", "k = 5120", 5120, &[1, 10], 3.34),
    fused("norm_bitlinear_relu2_f16_wide MSL", "k = 5120", 5120, &[1, 10], 2.78),
    fused("norm_bitlinear_silu_f16 WGSL", "k = 4096", 4096, &[1, 8], 3.25),
    fused("norm_bitlinear_silu_f16 MSL", "k = 4096", 4096, &[1, 8], 2.80),
    fused("norm_bitlinear_silu_f16_wide WGSL", "k = 5120", 5120, &[1, 10], 3.35),
    fused("norm_bitlinear_silu_f16_wide MSL", "k = 5120", 5120, &[1, 10], 2.81),
    fused("norm_bitlinear_gelu_tanh_f16 WGSL", "k = 2560", 2560, &[1, 5], 3.87),
    fused("norm_bitlinear_gelu_tanh_f16 MSL", "k = 2560", 2560, &[1, 5], 3.46),
    fused("norm_bitlinear_gelu_tanh_f16_wide WGSL", "k = 5120", 5120, &[1, 10], 3.35),
    fused("norm_bitlinear_gelu_tanh_f16_wide MSL", "k = 5120", 5120, &[1, 10], 2.81),
    grouped("bitlinear_float_gemv_one WGSL", "k = 2048", [64, 8, 2048], &[4], 3.75),
    grouped("bitlinear_float_gemv_one WGSL", "k = 6144", [64, 8, 6144], &[12], 3.41),
    grouped("bitlinear_float_gemv_one MSL", "k = 2048", [64, 16, 2048], &[4], 3.25),
    grouped("bitlinear_float_gemv_one MSL", "k = 6144", [64, 16, 6144], &[12], 3.07),
    grouped("bitlinear_float_gemv_quads WGSL", "k = 2048, four tokens", [64, 8, 2048], &[4], 9.11),
    grouped("bitlinear_float_gemv_quads MSL", "k = 2048, four tokens", [64, 8, 2048], &[4], 8.34),
    grouped(
        "bitlinear_block_float_gemv_quads WGSL",
        "k = 2048",
        [64, 16, 2048],
        &[1, 2, 8, 16],
        3.71,
    ),
    grouped("bitlinear_block_float_gemv_quads MSL", "k = 2048", [64, 16, 2048], &[1, 2, 16], 3.42),
    grouped(
        "bitlinear_block_float_gemv_quads_4 WGSL",
        "k = 2048, four tokens",
        [64, 16, 2048],
        &[1, 2, 8, 16],
        7.40,
    ),
    grouped(
        "bitlinear_block_float_gemv_quads_4 MSL",
        "k = 2048, four tokens",
        [64, 16, 2048],
        &[1, 2, 16],
        7.18,
    ),
    grouped(
        "norm_bitlinear_block_float WGSL",
        "k = 2048, 64 rows",
        [128, 64, 2048],
        &[4, 4, 1, 4, 16],
        4.00,
    ),
    grouped(
        "norm_bitlinear_block_float WGSL",
        "k = 6144, 64 rows",
        [128, 64, 6144],
        &[12, 12, 3, 12, 48],
        3.84,
    ),
    grouped(
        "norm_bitlinear_block_float MSL",
        "k = 2048, 64 rows",
        [128, 64, 2048],
        &[4, 4, 1, 4],
        4.30,
    ),
    grouped(
        "norm_bitlinear_block_float MSL",
        "k = 6144, 64 rows",
        [128, 64, 6144],
        &[12, 12, 3, 12],
        4.06,
    ),
    grouped(
        "norm_bitlinear_block_float_silu WGSL",
        "k = 2048, 64 rows",
        [128, 64, 2048],
        &[4, 4, 1, 4, 16],
        4.08,
    ),
    grouped(
        "norm_bitlinear_block_float_silu MSL",
        "k = 2048, 64 rows",
        [128, 64, 2048],
        &[4, 4, 1, 4],
        4.40,
    ),
    attention("attention_few_4 WGSL", "four rows", &[1, 0, 1], 21.34),
    attention("attention_few_4 MSL", "four rows", &[1, 0, 8, 8, 0], 24.32),
    attention("attention_few_8 WGSL", "eight rows", &[1, 0, 1], 33.82),
    attention("attention_few_8 MSL", "eight rows", &[1, 0, 8, 8, 0], 38.68),
    head("dense_gemv_f32 WGSL", 32.0, &[20, 0], 2.46),
    head("dense_gemv_f32 MSL", 32.0, &[20], 1.80),
    head("dense_gemv_f16 WGSL", 16.0, &[10, 0], 2.09),
    head("dense_gemv_f16 MSL", 16.0, &[10], 1.67),
    head("dense_gemv_bf16 WGSL", 16.0, &[10, 0], 3.21),
    head("dense_gemv_bf16 MSL", 16.0, &[10], 3.05),
    head("dense_gemv_int8 WGSL", 8.0, &[5, 0], 5.38),
    head("dense_gemv_int8 MSL", 8.0, &[5], 6.74),
    last_norm("rms_norm WGSL", &[0, 0, 0], 49.31),
    last_norm("rms_norm MSL", &[10, 10, 0, 10], 65.64),
];

impl Case {
    /// Cycles a unit, of all lanes.
    ///
    /// # Errors
    /// If the kernel has other loops than the case counts.
    fn cycles(&self, parts: &Parts) -> Result<f64, String> {
        if parts.loops.len() != self.turns.len() {
            return Err(format!(
                "{}, {}: {} loops, of which {} are counted",
                self.kernel,
                self.shape,
                parts.loops.len(),
                self.turns.len()
            ));
        }
        // A loop in another goes round so often for each of its turns, of which there is one here.
        let of_loops = parts.loops.iter().zip(self.turns).map(|(own, turns)| turns * own.cycles());
        let last_turn = parts
            .last_turn
            .filter(|_| self.last_turn != Some(false))
            .map_or(0, |last| last.cycles());
        Ok(((parts.straight.cycles() + of_loops.sum::<u64>() + last_turn) * self.threads) as f64
            / self.units as f64)
    }

    /// The share of a GPU's bandwidth that this many cycles allow, in percent.
    fn share(&self, cycles: f64, cores: f64, budget: f64) -> f64 {
        100.0 * budget / 2.0 * self.bits / cycles / if self.alone { cores } else { 1.0 }
    }
}

/// The cases of kernels that were compiled, and what they come to.
fn figures(listings: &[Listing]) -> Vec<(&'static Case, Result<f64, String>)> {
    let of = |case: &'static Case| {
        let listing = listings.iter().find(|listing| listing.kernel == case.kernel);
        let parts = listing
            .and_then(loops::parts)
            .ok_or_else(|| format!("{}: no kernel with a loop", case.kernel));
        (case, parts.and_then(|parts| case.cycles(&parts)))
    };
    CASES.iter().map(of).collect()
}

/// The limits that are exceeded.
pub fn faults(listings: &[Listing]) -> Vec<String> {
    let fault = |(case, cycles): (&Case, Result<f64, String>)| match cycles {
        Ok(cycles) if cycles <= case.most => None,
        Ok(cycles) => Some(format!(
            "{}: {cycles:.3} cycles a {} with {}; the limit is {}",
            case.kernel, case.unit, case.shape, case.most
        )),
        Err(error) => Some(error),
    };
    figures(listings).into_iter().filter_map(fault).collect()
}

/// The figures, and the share of some GPUs' bandwidth that the arithmetic allows: in bold where
/// that is the limit, and not memory.
pub fn table(listings: &[Listing]) -> String {
    let mut text = "| kernel | language | shape | a unit | bits | cycles a unit |".to_owned();
    let mut rule = "| --- | --- | --- | --- | --: | --: |".to_owned();
    for (gpu, ..) in GPUS {
        text += &format!(" {gpu} |");
        rule += " --: |";
    }
    text += &format!("\n{rule}\n");
    for (case, cycles) in figures(listings) {
        let (Ok(cycles), Some((kernel, language))) = (cycles, case.kernel.split_once(' ')) else {
            continue;
        };
        text += &format!(
            "| `{kernel}` | {language} | {} | {} | {} | {cycles:.2} |",
            case.shape, case.unit, case.bits
        );
        for (_, cores, budget) in GPUS {
            let share = case.share(cycles, cores, budget);
            text += &if share < 100.0 {
                format!(" **{share:.0} %** |")
            } else {
                format!(" {share:.0} % |")
            };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Cost;

    fn parts(loops: &[u64], last_turn: Option<u64>) -> Parts {
        let cost = |fast| Cost { instructions: 0, float: 0, multiplications: 0, fast, slow: 0 };
        let loops: Vec<_> = loops.iter().map(|&fast| cost(fast)).collect();
        Parts {
            turn: loops[0],
            last_turn: last_turn.map(cost),
            outside: cost(0),
            straight: cost(100),
            loops,
        }
    }

    #[test]
    fn loop_instructions_count_once_per_iteration() {
        const CASE: Case = Case {
            last_turn: Some(false),
            ..weights("k", "k = 2560", [32, 8, 2560], &[1, 5], 1.0)
        };
        // Per lane, for 640 weights.
        assert_eq!(CASE.cycles(&parts(&[50, 200], Some(220))).unwrap(), 1150.0 / 640.0);
        for last_turn in [Some(true), None] {
            assert_eq!(
                Case { last_turn, ..CASE }.cycles(&parts(&[50, 200], Some(220))).unwrap(),
                1370.0 / 640.0
            );
        }
        assert!(
            CASE.cycles(&parts(&[50], None))
                .unwrap_err()
                .contains("1 loops, of which 2 are counted")
        );
        // Twice the bits leave twice the time.
        assert_eq!(CASE.share(2.4, 8.0, 4.8), 200.0);
        assert_eq!(Case { bits: 4.0, ..CASE }.share(2.4, 8.0, 4.8), 400.0);
        assert_eq!(Case { alone: true, ..CASE }.share(2.4, 8.0, 4.8), 25.0);
    }
}

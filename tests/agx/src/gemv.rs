//! Limits on the GEMV's cycles per weight, on matrices of a model with 2 billion weights.

use crate::{
    listing::Listing,
    loops::{self, Parts},
};

/// The kernel that is checked.
pub const KERNEL: &str = "bitlinear_gemv_half";
/// Rows that a SIMD-group computes at a time, and the lanes that share them.
const ROWS: u64 = 8;
const LANES: u64 = 32;
const WEIGHTS_PER_WORD: u64 = 16;
/// Weights that a lane processes in one iteration of the loop.
pub const WEIGHTS_PER_TURN: u64 = ROWS * WEIGHTS_PER_WORD;
/// Limit on cycles per weight in the loop.
pub const MOST_IN_LOOP: f64 = 1.7;
/// Columns of a matrix, and the limit on cycles per weight of the whole kernel.
pub const MOST_IN_ALL: [(u64, f64); 2] = [(2560, 2.05), (6912, 1.9)];

/// Cycles, summed over all lanes, that a GPU has in the time that its memory takes to deliver one weight.
const BUDGETS: [(&str, f64); 4] = [("M1", 4.8), ("M2 Max", 4.2), ("M4 Max", 3.4), ("M3 Ultra", 4.4)];
/// The section of the document that holds the figures.
pub const SECTION: &str = "gemv";

/// Cycles per weight in the loop.
pub fn in_loop(parts: &Parts) -> f64 {
    parts.turn.cycles() as f64 / WEIGHTS_PER_TURN as f64
}

/// Cycles per weight of the whole kernel, for rows of `columns` weights. A SIMD-group is busy as long as any of its lanes.
pub fn in_all(parts: &Parts, columns: u64) -> f64 {
    let words = columns.div_ceil(WEIGHTS_PER_WORD);
    let turn = parts.turn.cycles();
    let turns = match parts.last_turn {
        None => words.div_ceil(LANES) * turn,
        Some(last) => words / LANES * turn + if words.is_multiple_of(LANES) { 0 } else { last.cycles() },
    };
    ((turns + parts.outside.cycles()) * LANES) as f64 / (columns * ROWS) as f64
}

/// The limits that are exceeded.
pub fn faults(listing: &Listing) -> Vec<String> {
    let name = &listing.kernel;
    let Some(parts) = loops::parts(listing) else { return vec![format!("{name}: no loop")] };
    if parts.other_loops {
        return vec![format!("{name}: has a loop beside the hot one, whose iterations are not counted")];
    }
    let mut figures = vec![("in the loop".to_owned(), in_loop(&parts), MOST_IN_LOOP)];
    figures.extend(MOST_IN_ALL.map(|(columns, most)| (format!("in all with {columns} columns"), in_all(&parts, columns), most)));
    let over = figures.into_iter().filter(|(_, found, most)| found > most);
    over.map(|(what, found, most)| format!("{name}: {found:.3} cycles per weight {what}; the limit is {most}")).collect()
}

/// The kernel's figures, and the share of some GPUs' memory bandwidth that its arithmetic allows, for the whole kernel at the first width.
pub fn table(listings: &[Listing]) -> String {
    let mut text = format!("| `{KERNEL}`, cycles a weight | in the loop |");
    let mut rule = "| --- | --: |".to_owned();
    for (columns, _) in MOST_IN_ALL {
        text += &format!(" in all, k = {columns} |");
        rule += " --: |";
    }
    for (gpu, _) in BUDGETS {
        text += &format!(" {gpu} |");
        rule += " --: |";
    }
    text += &format!("\n{rule}\n");
    for listing in listings {
        let Some((KERNEL, language)) = listing.kernel.split_once(' ') else { continue };
        let Some(parts) = loops::parts(listing) else { continue };
        text += &format!("| {language} | {:.2} |", in_loop(&parts));
        text.extend(MOST_IN_ALL.map(|(columns, _)| format!(" {:.2} |", in_all(&parts, columns))));
        text.extend(BUDGETS.map(|(_, budget)| format!(" {:.0} % |", 100.0 * budget / in_all(&parts, MOST_IN_ALL[0].0))));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Cost;

    #[test]
    fn idle_lanes_are_reckoned_in() {
        let cost = |fast| Cost { instructions: 0, float: 0, fast, slow: 0 };
        let mut parts = Parts { turn: cost(200), last_turn: None, outside: cost(100), other_loops: false };
        // Per lane: 5 iterations for 640 weights; 13.5 iterations, which take 14, for 1728.
        assert_eq!(in_all(&parts, 2560), 1100.0 / 640.0);
        assert_eq!(in_all(&parts, 6912), 2900.0 / 1728.0);
        parts.last_turn = Some(cost(220));
        assert_eq!(in_all(&parts, 2560), 1100.0 / 640.0);
        assert_eq!(in_all(&parts, 6912), 2920.0 / 1728.0);
        assert_eq!(in_loop(&parts), 200.0 / 128.0);
    }
}

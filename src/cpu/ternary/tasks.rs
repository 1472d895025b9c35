//! Blocks of rows as tasks of the threads.

use crate::{
    cpu::threads::by_chunks,
    weights::ternary::interleaved::{InterleavedTernary, LANES, Lanes},
};
use std::ops::Range;

/// Bytes of weights that are worth being given to another thread.
const TASK_BYTES: usize = 32 << 10;

/// Outputs whose copies are worth being given to another thread.
const COPIES: usize = 1 << 14;

/// `[tokens, rows]` of `multiply(blocks, y)`, which makes some blocks of rows for all `m` tokens,
/// at least one: `[tokens, 16 rows a block]`.
pub fn by_blocks(
    m: usize,
    w: &InterleavedTernary,
    multiply: impl Fn(Range<usize>, &mut [f32]) + Sync,
) -> Vec<f32> {
    let n = w.rows();
    // Blocks of rows are the tasks; each has its outputs together, a token after another.
    let blocks =
        (TASK_BYTES / (w.row_words() * size_of::<Lanes>()).max(1)).clamp(1, w.blocks().max(1));
    let mut by_task = vec![0f32; w.blocks() * LANES * m];
    by_chunks(&mut by_task, blocks * LANES * m, |first, y| {
        let first = first / (LANES * m);
        multiply(first..first + y.len() / (LANES * m), y);
    });
    if m == 1 {
        by_task.truncate(n);
        return by_task;
    }
    let mut y = vec![0f32; m * n];
    let tokens = (COPIES / n.max(1)).max(1);
    by_chunks(&mut y, tokens * n.max(1), |first, y| {
        for (token, y) in (first / n.max(1)..).zip(y.chunks_exact_mut(n.max(1))) {
            for (y, task) in y.chunks_mut(blocks * LANES).zip(by_task.chunks(blocks * LANES * m)) {
                y.copy_from_slice(&task[token * (task.len() / m)..][..y.len()]);
            }
        }
    });
    y
}

// How the token after a row is drawn. The kernel that includes this has `draws` [sequences, 8], and `runs`, which names sequences as in rope.wgsl: rows
// come after the last `each` tokens of each run.
struct Draw {
    seed: vec2<u32>,
    // What differences of logits are multiplied with (shared/race).
    scale: f32,
    // The least weight that is kept.
    least: u32,
    // How many logits are kept, at most.
    k: u32,
    // The share of the weights that is to be reached.
    share: u32,
}

const NUMBERS: u32 = 0u;
const WEIGHTS: u32 = 1u;
const ALL: u32 = 0xffffffffu;

fn draw_of(row: u32) -> Draw {
    let at = 2u * min(runs[row / params.each].x, params.sequences - 1u);
    let a = draws[at];
    let b = draws[at + 1u];
    return Draw(a.xy, bitcast<f32>(a.z), a.w, b.x, b.y);
}

// Is the first of the largest logits taken, whatever it is?
fn is_greedy(draw: Draw) -> bool { return draw.k == 1u; }

// Does a row need the search of this kind?
fn searches(draw: Draw, kind: u32) -> bool {
    if kind == WEIGHTS { return !is_greedy(draw) && draw.share != ALL; }
    return !is_greedy(draw) && draw.k < params.count;
}

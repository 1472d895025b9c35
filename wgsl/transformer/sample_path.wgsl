// A search for the key at which a row's largest logits are enough: there are k of them, or their weights reach a share. It goes digit by digit, eight
// bits a pass. In every pass all chunks add up, for each value of the digit, how many logits or what weight it has among those with the digits so far;
// the next dispatch finds the digit, each workgroup for itself. A row that needs no search of a kind has nothing in its bins, and goes through its passes
// as it came. The kernel that includes this has `bins` [rows, passes, 256, 2] and `path` [rows, passes + 1, 3].

// A whole number of 64 bits: the lower word, the upper one.
alias Wide = vec2<u32>;

fn add(a: Wide, b: Wide) -> Wide {
    let low = a.x + b.x;
    return Wide(low, a.y + b.y + u32(low < b.x));
}
fn subtract(a: Wide, b: Wide) -> Wide { return Wide(a.x - b.x, a.y - b.y - u32(a.x < b.x)); }
fn is_less(a: Wide, b: Wide) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }
fn product(a: u32, b: u32) -> Wide { return Wide(a * b, upper(a, b)); }

// What came before a pass: nothing, the first pass of a search by number or by weight, or a later one.
const NOTHING: u32 = 0u;
const FIRST_BY_NUMBER: u32 = 1u;
const FIRST_BY_WEIGHT: u32 = 2u;
const LATER_BY_NUMBER: u32 = 3u;
const LATER_BY_WEIGHT: u32 = 4u;

struct Path {
    // The digits that were found; the others are 0.
    key: u32,
    // What is still to be reached among the logits that have them.
    need: Wide,
}

var<workgroup> sums: array<Wide, THREADS>;
var<workgroup> found: array<u32, 3>;

fn path_at(row: u32, pass_index: u32) -> u32 { return 3u * (row * (params.passes + 1u) + pass_index); }

// The path that the pass before this dispatch ends in. THREADS is the number of a digit's values.
fn settled(row: u32, draw: Draw, ids: Ids) -> Path {
    if params.before == NOTHING { return Path(); }
    // From the largest digit down.
    let digit = THREADS - 1u - ids.local;
    let at = 2u * ((row * params.passes + params.pass_index - 1u) * THREADS + digit);
    let own = Wide(atomicLoad(&bins[at]), atomicLoad(&bins[at + 1u]));
    sums[ids.local] = own;
    if ids.local < 3u { found[ids.local] = 0u; }
    workgroupBarrier();
    for (var step = 1u; step < THREADS; step *= 2u) {
        var sum = sums[ids.local];
        if ids.local >= step { sum = add(sum, sums[ids.local - step]); }
        workgroupBarrier();
        sums[ids.local] = sum;
        workgroupBarrier();
    }
    let slot = path_at(row, params.pass_index - 1u);
    var key = path[slot];
    var need = Wide(path[slot + 1u], path[slot + 2u]);
    let by_weight = params.before == FIRST_BY_WEIGHT || params.before == LATER_BY_WEIGHT;
    let searched = searches(draw, select(NUMBERS, WEIGHTS, by_weight));
    let came = Path(key, need);
    if params.before == FIRST_BY_NUMBER {
        key = 0u;
        need = Wide(draw.k, 0u);
    }
    if params.before == FIRST_BY_WEIGHT {
        key = 0u;
        need = share_of(sums[THREADS - 1u], draw.share);
    }
    let above = subtract(sums[ids.local], own);
    if is_less(above, need) && !is_less(sums[ids.local], need) {
        let rest = subtract(need, above);
        found[0] = key | (digit << ((params.shift + 8u) & 31u));
        found[1] = rest.x;
        found[2] = rest.y;
    }
    workgroupBarrier();
    var result = Path(found[0], Wide(found[1], found[2]));
    workgroupBarrier();
    if !searched { result = came; }
    return result;
}

// share · 2^-32 of a sum, rounded up, and at least 1.
fn share_of(sum: Wide, share: u32) -> Wide {
    let low = product(sum.x, share);
    let all = add(product(sum.y, share), Wide(low.y, 0u));
    let least = add(all, Wide(u32(low.x != 0u), 0u));
    return Wide(max(least.x, u32(least.y == 0u)), least.y);
}

fn keep(row: u32, result: Path) {
    let to = path_at(row, params.pass_index);
    path[to] = result.key;
    path[to + 1u] = result.need.x;
    path[to + 2u] = result.need.y;
}

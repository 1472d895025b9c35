// A row of numbers, of which a thread has quads place(ids), SHARERS further, and so on. It holds the first HELD of them, so that a row of up to
// 4·HELD·SHARERS numbers is read once; what is beyond is read whenever it is needed.
// A kernel that includes this defines `params.features` and
//     Fetched, fetch(token, quad)     what is loaded for four numbers of a row, 4·quad .. 4·quad + 4
//     numbers(fetched, quad)          these numbers; 0 beyond the row
//     cut(numbers, quad)              0 in place of what is beyond the row: in shared/row_any, or for whole quads in shared/row_whole
//     finished(numbers, quad)         what becomes of those that are not held; the kernel sees to the others
var<private> held: array<vec4<f32>, HELD>;

fn magnitude(v: vec4<f32>) -> u32 {
    // The bits of floats >= 0 are ordered as the floats are, with NaN above infinity; and an integer maximum is one instruction on Apple GPUs,
    // where a float maximum is a tree of shuffles.
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

// Loads are all on their way before the first number is needed.
fn hold_row(token: u32, ids: Ids) {
    var fetched = array<Fetched, HELD>();
    for (var h = 0u; h < HELD; h += 1u) {
        let quad = place(ids) + h * SHARERS;
        if 4u * quad < params.features { fetched[h] = fetch(token, quad); }
    }
    for (var h = 0u; h < HELD; h += 1u) { held[h] = numbers(fetched[h], place(ids) + h * SHARERS); }
}

// The first quad of a thread that it does not hold.
fn beyond(ids: Ids) -> u32 { return place(ids) + HELD * SHARERS; }
fn fetched_numbers(token: u32, quad: u32) -> vec4<f32> { return numbers(fetch(token, quad), quad); }

// The bits of the largest magnitude of the finished row, in a cell of its own. All threads that share it must call this together.
fn largest_of_row(token: u32, ids: Ids) -> u32 {
    var bits = 0u;
    for (var h = 0u; h < HELD; h += 1u) { bits = max(bits, magnitude(held[h])); }
    for (var quad = beyond(ids); 4u * quad < params.features; quad += SHARERS) {
        bits = max(bits, magnitude(finished(fetched_numbers(token, quad), quad)));
    }
    return cell_max(3u, bits, ids);
}

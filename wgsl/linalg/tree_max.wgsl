// The largest v of a workgroup. All threads must call this together; all get it.
var<workgroup> tops: array<u32, THREADS>;

fn tree_max(v: u32, local: u32) -> u32 {
    tops[local] = v;
    workgroupBarrier();
    for (var stride = THREADS / 2u; stride > 0u; stride /= 2u) {
        if local < stride { tops[local] = max(tops[local], tops[local + stride]); }
        workgroupBarrier();
    }
    let top = tops[0];
    workgroupBarrier();
    return top;
}

// The bits of |v|: they are in the order of the numbers, with infinity and NaN above all.
fn magnitude(v: f32) -> u32 { return bitcast<u32>(v) & 0x7fffffffu; }

// 2^-e for numbers up to 2^(e + 1), given the magnitude of the largest, so that none of their squares overflows, and those that count do not
// underflow; and 2^e.
fn down_scale(top: u32) -> f32 { return bitcast<f32>((254u - clamp(top >> 23u, 1u, 253u)) << 23u); }
fn up_scale(top: u32) -> f32 { return bitcast<f32>(clamp(top >> 23u, 1u, 253u) << 23u); }

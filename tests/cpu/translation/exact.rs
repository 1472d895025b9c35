//! Quotients and roots are exact in Metal on devices whose own are off. The emulator runs the
//! sources, so this is for Linux.

use bitnet_wgpu::{
    Kernel,
    kernel::{Source, Type, read, read_write},
};
use msl_host::{Order, Program};
use naga::back::msl;
use rand::RngExt;
use std::ops::RangeInclusive;
use support::{
    machine::{naga_metal, parse},
    repository, rng,
};

/// Quotients as near to the middle of two floats as floats have any, and others; then by how many
/// units the device's reciprocals are off.
fn quotients() -> (Vec<f32>, Vec<f32>) {
    let mut rng = rng(7);
    let float = |significand: u64| significand as f32;
    let mut pairs = vec![
        (1.0, f32::from_bits(0x3fff_ffff)),
        (f32::from_bits(0x3fff_ffff), 1.0),
        (6.0, 3.0),
        (-1.0, 3e37),
        (3e38, -7.0),
    ];
    while pairs.len() < 6000 {
        let b = rng.random_range(1u64 << 23..1 << 24) | 1;
        let r = rng.random_range(0..2u64) * 2;
        // a with 2^25·a = ±1 (mod b), so that a / b is half a unit of 2^-24 off a multiple of that,
        // but for 1 / 2^25·b.
        let half = b.div_ceil(2);
        let inverse = (0..25).fold(1, |v, _| v * half % b);
        let a = if r == 0 { inverse } else { b - inverse };
        if a >= 1 << 23 {
            pairs.push((float(a), float(b)));
        }
        pairs.push((
            f32::from_bits(rng.random_range(0x2000_0000..0x6000_0000)),
            f32::from_bits(rng.random_range(0x2000_0000..0x6000_0000)),
        ));
    }
    pairs.into_iter().unzip()
}

/// Runs a kernel that makes x[i] / y[i] and the root of |x[i]| where the device is `units` off.
fn check_exact(text: &str, entry: &str, units: RangeInclusive<i32>) {
    let program = Program::compile(text, entry, [64, 1, 1]).unwrap_or_else(|e| panic!("{e}"));
    let (x, y) = quotients();
    let bytes = |v: &[f32]| v.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>();
    for units in units {
        let mut buffers =
            vec![bytes(&x), bytes(&y), units.to_ne_bytes().to_vec(), vec![0; 8 * x.len()]];
        // naga's source asks for the sizes of its buffers.
        buffers
            .push(buffers.iter().flat_map(|buffer| (buffer.len() as u32).to_ne_bytes()).collect());
        program
            .dispatch(&mut buffers, [x.len().div_ceil(64) as u32, 1, 1], Order::Forward)
            .unwrap_or_else(|e| panic!("{e}"));
        let found: Vec<u32> =
            buffers[3].chunks_exact(4).map(|b| u32::from_ne_bytes(b.try_into().unwrap())).collect();
        for (i, (&x, &y)) in x.iter().zip(&y).enumerate() {
            assert_eq!(
                found[2 * i],
                (x / y).to_bits(),
                "{x:?} / {y:?}, {units} units off: {:?}",
                f32::from_bits(found[2 * i])
            );
            assert_eq!(
                found[2 * i + 1],
                x.abs().sqrt().to_bits(),
                "the root of {x:?}, {units} units off"
            );
        }
    }
}

/// `file`, in which what devices may round is `units` off.
fn nudged(file: &str, rounded: &[&str]) -> String {
    let text = std::fs::read_to_string(repository(file)).unwrap();
    rounded.iter().fold(text, |text, what| {
        assert!(text.contains(what), "{file}: {what}");
        text.replace(what, &format!("nudged({what})"))
    })
}

#[test]
fn quotients_and_roots_are_exact_on_every_device() {
    const KERNEL: Kernel = Kernel::new(
        "exact",
        &[],
        &[
            read("x", Type::F32),
            read("y", Type::F32),
            read("units", Type::I32),
            read_write("z", Type::F32),
        ],
        &[Source::wgsl(&[])],
    );
    for (file, rounded, units) in
        [("exact", ["1.0 / b", "inverseSqrt(m)"], 3), ("exact_unfused", ["x / y", "sqrt(x)"], 2)]
    {
        let text = nudged(&format!("wgsl/shared/{file}.wgsl"), &rounded)
            + "@group(0) @binding(0) var<storage, read> x: array<f32>;
            @group(0) @binding(1) var<storage, read> y: array<f32>;
            @group(0) @binding(2) var<storage, read> units: array<i32>;
            @group(0) @binding(3) var<storage, read_write> z: array<f32>;
            // Above a power of two, units are twice as large.
            fn nudged(v: f32) -> f32 {
                let bits = bitcast<i32>(v);
                let moved = bits + units[0];
                return bitcast<f32>(select(bits + sign(units[0]), moved, (moved ^ bits) < 0x800000));
            }
            @compute @workgroup_size(64) fn exact(@builtin(global_invocation_id) id: vec3<u32>) {
                if id.x >= arrayLength(&x) { return; }
                z[2u * id.x] = exact_quotient(x[id.x], y[id.x]);
                z[2u * id.x + 1u] = exact_sqrt(abs(x[id.x]));
            }";
        let (metal, entry) =
            naga_metal(&KERNEL, &parse(&text, msl::supported_capabilities()), (3, 1));
        check_exact(&metal, &entry, -units..=units);
    }
    // Metal has no variables that `nudged` could read.
    for units in [-2, 1] {
        let text = format!("#include <metal_stdlib>\nusing namespace metal;\n#define nudged(v) as_type<float>(as_type<int>(v) + ({units}))\n")
            + &nudged("msl/shared/exact.metal", &["1.0f / b", "rsqrt(m)"])
            + "[[max_total_threads_per_threadgroup(64)]]
            kernel void exact(device const float* x [[buffer(0)]], device const float* y [[buffer(1)]], device const int* units [[buffer(2)]],
                device float* z [[buffer(3)]], device const uint* sizes [[buffer(4)]], uint i [[thread_position_in_grid]]) {
                if (4u * i >= sizes[0]) return;
                z[2u * i] = exact_quotient(x[i], y[i]);
                z[2u * i + 1u] = exact_sqrt(fabs(x[i]));
            }";
        check_exact(&text, "exact", units..=units);
    }
}

//! Kernels of one product, and kernels in workgroups and tiles of other sizes: where they add in
//! the same order, they are bit-identical.

use bitnet_wgpu::bitnet::{ActivationType, BitLinear};
use bitnet_wgpu::{
    Context, Element, Encoder, Kernel, Result,
    bitnet::Layout,
    device::Capabilities,
    internals::{Access, Dispatch, Grid, KernelInternals as _, catalog},
    kernel::{ShaderLanguage, Source},
    tensor::{self, Float, Side, f16},
    transformer::{AttentionShape, CachePositions, KvCache, attention, rope, rope_angles},
    tuning::TuningKey,
    weights::{PackedTernary, Scales},
};
use std::{collections::HashMap, sync::Arc};
use support::{
    Case, Data, Leeway, Recorded, block_on, context, contexts, convert, floats, ops, quantize_as,
    rng, ternary, ternary_with, with_tensor_cores,
};

/// What each of these kernels makes of the first dispatch of `record`, in bits.
fn outputs(
    context: &Context,
    kernels: &[&str],
    record: impl Fn(&mut Encoder) -> Result<()>,
) -> Vec<Vec<u8>> {
    let mut encoder = context.encoder("product");
    record(&mut encoder).unwrap();
    let recording = encoder.finish();
    let dispatch: Dispatch<'_> = recording.dispatches().next().unwrap();
    let output =
        dispatch.kernel().bindings.iter().position(|b| b.access == Access::ReadWrite).unwrap();
    let run = |name: &&str| {
        let kernel: &'static Kernel = catalog().find(|kernel| kernel.name == *name).unwrap();
        let poison = vec![0xee; block_on(dispatch.read(output)).unwrap().len()];
        dispatch.write(output, &poison).unwrap();
        let mut encoder = context.encoder("repeated");
        encoder.repeat(&dispatch, kernel).unwrap();
        encoder.submit().unwrap().wait().unwrap();
        block_on(dispatch.read(output)).unwrap()
    };
    kernels.iter().map(run).collect()
}

fn assert_same(kernels: &[&str], outputs: &[Vec<u8>], what: &str) {
    for (name, output) in kernels.iter().zip(outputs) {
        assert!(output == &outputs[0], "{what}: {name} is not {}", kernels[0]);
    }
}

fn products<X: Float, Y: Float>(context: &Context) {
    // Rows of whole quads, off every tile in each dimension.
    for [m, k, n] in [[4, 8, 4], [76, 52, 132], [132, 36, 68], [260, 4, 64]] {
        for [a_transposed, b_transposed] in
            [[false, false], [false, true], [true, false], [true, true]]
        {
            let mut rng = rng((m + k + n) as u64);
            let (a, b) = (
                convert::<X>(&floats(&mut rng, m * k, 3.0)),
                convert::<X>(&floats(&mut rng, k * n, 3.0)),
            );
            let a = context.upload(&a, if a_transposed { [k, m] } else { [m, k] }).unwrap();
            let b = context.upload(&b, if b_transposed { [n, k] } else { [k, n] }).unwrap();
            let y = bitnet_wgpu::Tensor::<Y>::uninit(context, [m, n]).unwrap();
            let side = |tensor, transposed| {
                if transposed { Side::transposed(tensor) } else { Side::from(tensor) }
            };
            let record = |e: &mut Encoder| {
                tensor::matmul(side(&a, a_transposed), side(&b, b_transposed)).forward_into(e, &y)
            };
            let tiles = ["matmul", "matmul_quads", "matmul_large", "matmul_direct"];
            let what = format!("{m} × {k} × {n}, {a_transposed}, {b_transposed}");
            assert_same(&tiles, &outputs(context, &tiles, record), &what);
            let gemv = match [a_transposed, b_transposed] {
                [false, true] => ["matmul_gemv", "matmul_gemv_quads"],
                [false, false] => ["matmul_gemv_columns", "matmul_gemv_columns_quads"],
                _ => continue,
            };
            assert_same(&gemv, &outputs(context, &gemv, record), &what);
        }
    }
}

#[test]
fn tiles_of_any_size_give_the_same_bits() {
    for context in contexts() {
        products::<f32, f32>(&context);
        if context.capabilities().f16 {
            products::<f16, f32>(&context);
            products::<f32, f16>(&context);
        }
    }
}

#[test]
fn tiles_of_ternary_weights_do_too() {
    for context in contexts() {
        for (m, rows, columns) in [(1, 5, 8usize), (70, 133, 100), (130, 64, 260)] {
            let mut rng = rng((m + rows) as u64);
            let scales = Scales::Groups {
                size: 32,
                scales: floats(&mut rng, rows * columns.div_ceil(32), 1.0),
            };
            let w = ternary_with(&mut rng, rows, columns, scales).upload(&context).unwrap();
            let x = context.upload(&floats(&mut rng, m * columns, 3.0), [m, columns]).unwrap();
            let record = |e: &mut Encoder| {
                BitLinear::new(&w).activation_type(ActivationType::Float).forward(e, &x).map(|_| ())
            };
            let kernels = ["matmul_ternary", "matmul_ternary_large"];
            assert_same(
                &kernels,
                &outputs(&context, &kernels, record),
                &format!("{m} × {rows} × {columns}"),
            );
        }
    }
}

#[test]
fn gemvs_of_ternary_weights_do_too() {
    const ANY: [&str; 2] = ["bitlinear_float_gemv", "bitlinear_float_gemv_quads"];
    for context in contexts() {
        // Of one token whole words as well: several for a lane, in groups that end between them.
        for (m, rows, columns, size) in
            [(1, 21, 1600usize, 48), (1, 4, 528, 128), (3, 21, 1044, 16)]
        {
            let mut rng = rng((m + rows) as u64);
            let scales = Scales::Groups {
                size,
                scales: floats(&mut rng, rows * columns.div_ceil(size), 1.0),
            };
            let w = ternary_with(&mut rng, rows, columns, scales).upload(&context).unwrap();
            // Tiny activations too: on the way to a product nothing is lost.
            for power in [0, -110] {
                let values: Vec<f32> = floats(&mut rng, m * columns, 3.0)
                    .iter()
                    .map(|v| v * 2f32.powi(power))
                    .collect();
                let x = context.upload(&values, [m, columns]).unwrap();
                let kernels =
                    if m == 1 { &[ANY[0], ANY[1], "bitlinear_float_gemv_one"][..] } else { &ANY };
                let made = outputs(&context, kernels, |e| {
                    BitLinear::new(&w)
                        .activation_type(ActivationType::Float)
                        .forward(e, &x)
                        .map(|_| ())
                });
                assert_same(kernels, &made, &format!("{m} × {rows} × {columns} by {size}"));
            }
        }
    }
}

/// New tokens of two sequences in a cache of random numbers: bits of both kernels for prompts with
/// heads of 128.
fn attention_of_prompts(context: &Context, element: Element, window: Option<usize>) {
    let (heads, kv_heads, head_dim, capacity, run) = (6, 2, 128, 211, 23);
    let shape = AttentionShape { heads, kv_heads, head_dim };
    let cache = KvCache::new(context, shape, 2, capacity, element).unwrap().window(window);
    let (mut rng, row) = (rng(77), (heads + 2 * kv_heads) * head_dim);
    let angles = rope_angles(&vec![0.01; head_dim / 2], capacity);
    let angles = context.upload(&angles, [capacity, head_dim / 2, 2]).unwrap();
    let mut encoder = context.encoder("cache");
    for (sequence, len) in [(0, 130), (1, 188)] {
        let before = context.upload(&floats(&mut rng, len * row, 1.5), [len, row]).unwrap();
        let runs = context.upload(&[sequence, 0], [1, 2]).unwrap();
        rope(&before, CachePositions::new(&runs, len), &angles, &cache)
            .forward(&mut encoder)
            .unwrap();
    }
    encoder.submit().unwrap().wait().unwrap();
    let runs = context.upload(&[1, 188 - run as u32, 0, 130 - run as u32], [2, 2]).unwrap();
    let qkv = context.upload(&floats(&mut rng, 2 * run * row, 2.0), [2 * run, row]).unwrap();
    let record = |e: &mut Encoder| {
        attention(&qkv, CachePositions::new(&runs, run), &cache).forward(e).map(|_| ())
    };
    let kernels = ["attention_many", "attention_buffered"];
    let what = format!("{element} {window:?}");
    assert_same(&kernels, &outputs(context, &kernels, record), &what);
}

#[test]
fn attention_in_two_buffers_gives_the_same_bits() {
    let wgsl = context().with_language(ShaderLanguage::Wgsl).unwrap();
    let prompts = |c: &mut Capabilities| {
        c.tuning.set(TuningKey::AttentionSplitWorkgroups, 0).unwrap();
    };
    let context = wgsl.restricted(prompts);
    attention_of_prompts(&context, Element::F32, None);
    if context.capabilities().f16 {
        attention_of_prompts(&context, Element::F16, Some(90));
    }
}

/// A row's output does not depend on how many tokens go beside it, nor on the kernel: all sums are
/// exact.
#[test]
fn bitlinear_gives_the_same_bits_by_every_kernel() {
    for context in contexts().into_iter().chain(with_tensor_cores().cloned()) {
        for (m, rows, columns) in
            [(1, 5, 70), (3, 21, 2575), (8, 130, 515), (21, 66, 300), (150, 133, 200)]
        {
            let mut rng = rng((m + rows) as u64);
            let (w, x) = (ternary(&mut rng, rows, columns), floats(&mut rng, m * columns, 3.0));
            assert_one_product(&context, &w, &x, m);
        }
        // The largest sums that every kernel takes, and activations of 0.
        for (columns, value) in [(1 << 15, 1.0), (1 << 15, -1.0), (70, 0.0)] {
            let ones =
                PackedTernary::from_values(3, columns, &vec![1; 3 * columns], Scales::Tensor(1.0))
                    .unwrap();
            assert_one_product(&context, &ones, &vec![value; 2 * columns], 2);
        }
    }
}

/// As far as sums are exact on tensor cores.
#[test]
fn the_largest_sums_on_tensor_cores_are_exact() {
    let Some(context) = with_tensor_cores() else {
        println!("NOT RUN: the device has no tensor cores");
        return;
    };
    let columns = 1 << 16;
    let ones =
        PackedTernary::from_values(3, columns, &vec![1; 3 * columns], Scales::Tensor(1.0)).unwrap();
    for value in [1.0, -1.0] {
        assert_one_product(context, &ones, &vec![value; 2 * columns], 2);
    }
}

fn assert_one_product(context: &Context, w: &PackedTernary, x: &[f32], m: usize) {
    let (w, x) = (w.upload(context).unwrap(), context.upload(x, [m, w.columns()]).unwrap());
    for (layout, kinds) in
        [(Layout::Int8, &["_int8", "_tensor_cores"][..]), (Layout::F16, &["_f16", "_biased"])]
    {
        let most = layout.max_features(false);
        if layout == Layout::F16 && (!context.capabilities().f16_subnormals || w.columns() > most) {
            continue;
        }
        let mut encoder = context.encoder("quantised");
        let xq = quantize_as(&mut encoder, &x, layout).unwrap();
        encoder.submit().unwrap().wait().unwrap();
        let of_layout = |kernel: &&'static Kernel| {
            let kind = ["bitlinear_gemv", "bitlinear_gemm"]
                .iter()
                .find_map(|entry| kernel.name.strip_prefix(entry));
            // Those with an epilogue are of another declaration.
            let plain = !kernel.name.ends_with("_finish");
            let runs = plain
                && kernel
                    .tensor_core
                    .is_none_or(|core| context.capabilities().tensor_cores.contains(&core));
            runs && kind.is_some_and(|kind| kinds.iter().any(|start| kind.starts_with(start)))
        };
        let names: Vec<_> = catalog().filter(of_layout).map(|kernel| kernel.name).collect();
        assert!(names.len() > 3, "{names:?}");
        let record = |e: &mut Encoder| BitLinear::new(&w).forward(e, &xq).map(|_| ());
        assert_same(
            &names,
            &outputs(context, &names, record),
            &format!("{m} × {} × {}", w.rows(), w.columns()),
        );
    }
}

/// Ops whose bits no size changes on software adapters, even where nothing is promised, and how
/// many of their cases are tried. Of others one is.
const SAME: &[(&str, usize)] = &[
    ("tensor::sum", 12),
    ("tensor::max", 2),
    ("tensor::argmax", 2),
    ("tensor::norm", 2),
    ("tensor::variance", 2),
    ("tensor::softmax", 4),
    ("tensor::layer_norm", 5),
    ("tensor::cross_entropy", 2),
    ("transformer::rms_norm", 3),
    ("transformer::rms_norm_backward", 2),
    ("transformer::rms_norm_heads", 2),
    ("bitnet::norm_bitlinear_add", 6),
    ("bitnet::norm_bitlinear_gated", 6),
    ("bitnet::quantize_activations", 4),
    ("bitnet::quantize_activations_4bit", 3),
    ("bitnet::quantize_activations_with_zero_point", 3),
    ("bitnet::fake_quantize_activations", 2),
    ("bitnet::rms_norm_fake_quantize", 2),
    ("bitnet::rms_norm_quantize", 3),
    ("bitnet::gate_norm_quantize", 2),
    ("transformer::attention", 3),
    ("transformer::flash_attention", 2),
    ("transformer::flash_attention_backward", 1),
    ("transformer::rotate", 2),
];

/// Ops whose kernels have one size. Products: their kernels, of several tiles, are compared with
/// one another above or by their cases. Sums in the order of a workgroup's threads: quantizers of
/// weights, prefix sums. A workgroup for what has that size: blocks of a transform, lists of the
/// largest. Probes.
const ONE_SIZE: &[&str] = &[
    "bitnet::bitlinear_float",
    "bitnet::bitlinear_float_with",
    "bitnet::bitlinear_int",
    "bitnet::bitlinear_int_with",
    "bitnet::bitlinear_block_float",
    "bitnet::bitlinear_block_float_fused",
    "bitnet::fake_quantize_weights",
    "bitnet::hadamard",
    "bitnet::quantize_weights",
    "bitnet::quantize_weights_binary",
    "bitnet::quantize_weights_binary_by_matrix",
    "bitnet::quantize_weights_by_group",
    "bitnet::quantize_weights_by_matrix",
    "tensor::matmul",
    "tensor::matmul_int8",
    "tensor::matmul_with",
    "tensor::prefix_sum",
    "transformer::sample",
    "transformer::top_k",
    "completion",
    "f16_subnormals",
    "fused_multiply_add",
    "matrix_places",
    "measure::arithmetic",
    "measure::read_bandwidth",
];

/// Sizes by which a kernel must be bit-identical: threads of a row, as many rows as fit into more
/// threads, numbers that a thread holds, rows of a tile of attention, columns of matrices that are
/// staged together. Those whose sums follow the size of a workgroup have none.
fn sizes(kernel: &Kernel) -> Vec<Source> {
    let threads_of = |source: &Source| source.workgroup_size.iter().product::<u32>();
    let Some(&source) = kernel.source(ShaderLanguage::Wgsl) else { return Vec::new() };
    let threads = |threads: u32| {
        let mut sized = source;
        sized.workgroup_size = [threads, 1, 1];
        sized.workgroup_bytes = source.workgroup_bytes * threads.div_ceil(threads_of(&source));
        sized
    };
    let has = |part: &str| kernel.parts(&source).any(|p| p.path == format!("wgsl/{part}.wgsl"));
    let most = context().device().limits().max_compute_invocations_per_workgroup;
    let sized = if has("transformer/flash_attention_tiles") {
        let shallow = |&(name, value): &(&'static str, u32)| {
            (name, if name == "DEPTH" { value / 2 } else { value })
        };
        vec![source.constants(Box::leak(source.constants.iter().map(shallow).collect()))]
    } else if has("transformer/attention_few") {
        let rows = 12 - source.tile[0];
        vec![source.tile([rows, 1, 1]).workgroup_bytes(2 * source.workgroup_bytes)]
    } else if has("shared/row") && source.tile == [1, 1, 1] {
        // A thread has a quad of a head, which is all that it may have.
        let least = if has("transformer/rms_norm_heads") { threads_of(&source) } else { 1 };
        [64, 128, 512].map(threads).into_iter().filter(|sized| threads_of(sized) >= least).collect()
    } else if has("shared/lanes") && source.tile == [1, 1, 1] {
        let mut sized = vec![threads(2 * threads_of(&source))];
        if has("shared/held") {
            sized.push(source.constants(&[("HELD", 3)]));
        }
        sized
    } else if kernel.grid == Grid::Flat
        && source.workgroup_bytes == 0
        && source.tile[0] % threads_of(&source) == 0
    {
        // Threads that know nothing of each other.
        [64, 128]
            .map(|n| threads(n).tile([source.tile[0] / threads_of(&source) * n, 1, 1]))
            .to_vec()
    } else {
        Vec::new()
    };
    sized.into_iter().filter(|sized| threads_of(sized) <= most && *sized != source).collect()
}

/// A kernel with a source of another size, whose hole is filled.
fn sized(kernel: &Kernel, mut source: Source) -> Kernel {
    source.parts = Box::leak(kernel.parts(&source).copied().collect());
    let made =
        Kernel::new(kernel.name, kernel.params, kernel.bindings, Box::leak(Box::new([source])))
            .entry(kernel.entry);
    let made = made.features(kernel.features);
    if kernel.grid == Grid::Flat { made.flat() } else { made }
}

/// Has a case run as it is, and once more for each size of its kernels. Gives the names of those
/// that have some.
fn assert_same_in_all_sizes(case: &Case, context: &Context, op: &str) -> Vec<&'static str> {
    let context = context.restricted(case.restrict).restricted(|c| c.device_barriers = false);
    let mut recorded = case.record(&context).unwrap();
    let before = recorded.before().unwrap();
    let run = |recorded: &Recorded| {
        recorded.write(&before).unwrap();
        recorded.recording.submit().unwrap().wait().unwrap();
        recorded.read().unwrap()
    };
    let expected = run(&recorded);
    let bytes =
        |outputs: Vec<Data>| outputs.iter().map(|data| data.bytes().to_vec()).collect::<Vec<_>>();
    let wanted_outputs = bytes(recorded.watched(&before, &expected).unwrap());
    let same = SAME.iter().any(|(name, _)| *name == op);
    let all: HashMap<&str, Vec<Source>> =
        recorded.recording.kernels().map(|kernel| (kernel.name, sizes(kernel))).collect();
    for n in 0..all.values().map(Vec::len).max().unwrap_or(0) {
        let mut encoder = context.encoder("in another size");
        for dispatch in recorded.recording.dispatches() {
            let kernel: &Kernel = dispatch.kernel();
            let source =
                all[kernel.name].get(n).or(kernel.source(ShaderLanguage::Wgsl)).copied().unwrap();
            encoder.repeat(&dispatch, &Arc::new(sized(kernel, source))).unwrap();
        }
        recorded = recorded.as_recorded(encoder.finish());
        let got = run(&recorded);
        let outputs = recorded.watched(&before, &got);
        let checked = outputs
            .as_ref()
            .map_err(String::clone)
            .and_then(|outputs| case.check(outputs, Leeway::Device));
        assert_eq!(checked, Ok(()), "{op}, {}, size {n} of {all:?}", case.name);
        // A GPU's compiler may fuse the multiply-adds of one source and not of another, and
        // lavapipe's makes other powers. What is kept between dispatches may differ in other ops:
        // of tiles beyond the last row more or less is written.
        let kept = !(same && (case.exact || context.capabilities().software)) || got == expected;
        let kept = kept && (!case.exact || bytes(outputs.unwrap()) == wanted_outputs);
        assert!(kept, "{op}, {}: other bits in size {n} of {all:?}", case.name);
    }
    all.into_iter().filter(|(_, sizes)| !sizes.is_empty()).map(|(name, _)| name).collect()
}

#[test]
#[ignore = "takes minutes: scripts/test --only slow"]
fn workgroups_of_any_size_give_the_same_bits() {
    let context = context().with_language(ShaderLanguage::Wgsl).unwrap();
    let mut of_one_size = Vec::new();
    for op in ops() {
        let count = SAME.iter().find(|(name, _)| *name == op.name).map_or(1, |(_, count)| *count);
        let cases: Vec<&Case> = op
            .cases()
            .iter()
            .filter(|case| !case.device_only && (!case.f16 || context.capabilities().f16))
            .collect();
        // From all over: shapes and types differ most.
        let chosen = (1..=count.min(cases.len())).map(|i| cases[i * cases.len() / count - 1]);
        let tried: Vec<_> =
            chosen.flat_map(|case| assert_same_in_all_sizes(case, &context, op.name)).collect();
        if tried.is_empty() {
            of_one_size.push(op.name);
        }
    }
    assert_eq!(of_one_size, ONE_SIZE);
}

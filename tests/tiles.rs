//! Kernels of one product: where they add in the same order, they give the same bits.

use bitnet_wgpu::{
    Context, Dispatch, Encoder, Float, Kernel, PackedTernary, Result, Scales,
    bitnet::{self, Layout},
    catalog, f16,
    tensor::{self, Side},
};
use support::{block_on, contexts, convert, floats, quantize_as, rng, ternary, ternary_with, with_matrix_units};

/// What each of these kernels makes of the first dispatch of `record`, in bits.
fn outputs(context: &Context, kernels: &[&str], record: impl Fn(&mut Encoder) -> Result<()>) -> Vec<Vec<u8>> {
    let mut encoder = context.encoder("product");
    record(&mut encoder).unwrap();
    let recording = encoder.finish();
    let dispatch: Dispatch<'_> = recording.dispatches().next().unwrap();
    let output = dispatch.kernel().outputs().next().unwrap().0;
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
        for [a_transposed, b_transposed] in [[false, false], [false, true], [true, false], [true, true]] {
            let mut rng = rng((m + k + n) as u64);
            let (a, b) = (convert::<X>(&floats(&mut rng, m * k, 3.0)), convert::<X>(&floats(&mut rng, k * n, 3.0)));
            let a = context.upload(&a, if a_transposed { [k, m] } else { [m, k] }).unwrap();
            let b = context.upload(&b, if b_transposed { [n, k] } else { [k, n] }).unwrap();
            let y = bitnet_wgpu::Tensor::<Y>::uninit(context, [m, n]).unwrap();
            let side = |tensor, transposed| if transposed { Side::transposed(tensor) } else { Side::from(tensor) };
            let record = |e: &mut Encoder| tensor::matmul_into(e, side(&a, a_transposed), side(&b, b_transposed), &y);
            let tiles = ["matmul", "matmul_quads", "matmul_large"];
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
            let scales = Scales::Groups { size: 32, scales: floats(&mut rng, rows * columns.div_ceil(32), 1.0) };
            let w = ternary_with(&mut rng, rows, columns, scales).upload(&context).unwrap();
            let x = context.upload(&floats(&mut rng, m * columns, 3.0), [m, columns]).unwrap();
            let record = |e: &mut Encoder| bitnet::bitlinear_float(e, &x, &w).map(|_| ());
            for kernels in [["matmul_ternary", "matmul_ternary_large"], ["bitlinear_float_gemv", "bitlinear_float_gemv_quads"]] {
                assert_same(&kernels, &outputs(&context, &kernels, record), &format!("{m} × {rows} × {columns}"));
            }
        }
    }
}

/// A row's output does not depend on how many tokens go beside it, nor on the kernel: all sums are exact.
#[test]
fn bitlinear_gives_the_same_bits_by_every_kernel() {
    for context in contexts().into_iter().chain(with_matrix_units().cloned()) {
        for (m, rows, columns) in [(1, 5, 70), (3, 21, 2575), (8, 130, 515), (21, 66, 300), (150, 133, 200)] {
            let mut rng = rng((m + rows) as u64);
            let (w, x) = (ternary(&mut rng, rows, columns), floats(&mut rng, m * columns, 3.0));
            assert_one_product(&context, &w, &x, m);
        }
        // The largest sums that every kernel takes, and activations of 0.
        for (columns, value) in [(1 << 15, 1.0), (1 << 15, -1.0), (70, 0.0)] {
            let ones = PackedTernary::from_values(3, columns, &vec![1; 3 * columns], Scales::Tensor(1.0)).unwrap();
            assert_one_product(&context, &ones, &vec![value; 2 * columns], 2);
        }
    }
}

/// As far as sums are exact on matrix units.
#[test]
fn the_largest_sums_on_matrix_units_are_exact() {
    let Some(context) = with_matrix_units() else { return };
    let columns = 1 << 16;
    let ones = PackedTernary::from_values(3, columns, &vec![1; 3 * columns], Scales::Tensor(1.0)).unwrap();
    for value in [1.0, -1.0] {
        assert_one_product(context, &ones, &vec![value; 2 * columns], 2);
    }
}

fn assert_one_product(context: &Context, w: &PackedTernary, x: &[f32], m: usize) {
    let (w, x) = (w.upload(context).unwrap(), context.upload(x, [m, w.columns()]).unwrap());
    for (layout, kinds) in [(Layout::Int8, &["_int8", "_units"][..]), (Layout::Half, &["_half", "_biased"])] {
        let most = layout.max_features(false);
        if layout == Layout::Half && (!context.capabilities().half_subnormals || w.columns() > most) {
            continue;
        }
        let mut encoder = context.encoder("quantised");
        let xq = quantize_as(&mut encoder, &x, layout).unwrap();
        encoder.submit().unwrap().wait().unwrap();
        let of_layout = |kernel: &&'static Kernel| {
            let kind = ["bitlinear_gemv", "bitlinear_gemm"].iter().find_map(|entry| kernel.name.strip_prefix(entry));
            // Those with an epilogue are of another declaration.
            let plain = !kernel.name.ends_with("_finish");
            let runs = plain && kernel.matrix_unit.is_none_or(|unit| context.capabilities().matrix_units.contains(&unit));
            runs && kind.is_some_and(|kind| kinds.iter().any(|start| kind.starts_with(start)))
        };
        let names: Vec<_> = catalog().filter(of_layout).map(|kernel| kernel.name).collect();
        assert!(names.len() > 3, "{names:?}");
        let record = |e: &mut Encoder| bitnet::bitlinear_quantized::<f32>(e, &xq, &w).map(|_| ());
        assert_same(&names, &outputs(context, &names, record), &format!("{m} × {} × {}", w.rows(), w.columns()));
    }
}

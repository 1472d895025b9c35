//! The Metal kernels where there is no Metal: the same texts, compiled for the CPU by tests/msl-host. That shows what they compute, and says
//! nothing about how fast.

use bitnet_wgpu::{Element, Kernel, PackedTernary, Scales, ShaderLanguage, catalog, kernel::Variant};
use msl_host::{Error, Order, Program};

/// The integer sums and the output of a BitLinear, `[tokens, rows]` each. Scales by groups have no Metal kernel.
pub fn bitlinear(x: &[f32], tokens: usize, w: &PackedTernary) -> Result<[Vec<f32>; 2], Error> {
    let (rows, columns) = (w.rows(), w.columns());
    let words = w.words().len() / rows;
    let zeros = |words: usize| vec![0; 4 * words];
    let params = |first: usize, second: usize| bytes(&[first as u32, second as u32, words as u32, 0]);

    let mut quantized = vec![params(tokens, columns), bytes(x), zeros(8 * words * tokens), zeros(tokens), zeros(2 * tokens)];
    run("quantize_activations_half", &mut quantized, [tokens, 1, 1])?;
    let [_, _, xq, x_scale, x_sum] = &quantized[..] else { unreachable!() };

    let name = if tokens == 1 { "bitlinear_gemv_half" } else { "bitlinear_gemm_half" };
    let multiply = |w_scale: &[f32], x_scale: &[u8]| -> Result<Vec<f32>, Error> {
        let inputs = [params(rows, tokens), bytes(w.words()), bytes(w_scale), xq.clone(), x_scale.to_vec(), x_sum.clone()];
        let mut buffers: Vec<_> = inputs.into_iter().chain([zeros(tokens * rows)]).collect();
        run(name, &mut buffers, [rows, tokens, 1])?;
        Ok(bytemuck::pod_collect_to_vec(&buffers[6]))
    };
    let scales = match w.scales() {
        Scales::Tensor(scale) => vec![*scale; rows],
        Scales::Segments(parts) => parts.iter().flat_map(|&(rows, scale)| vec![scale; rows]).collect(),
        Scales::Groups { .. } => panic!("scales by groups"),
    };
    Ok([multiply(&vec![1.0; rows], &bytes(&vec![1f32; tokens]))?, multiply(&scales, x_scale)?])
}

fn bytes<T: bytemuck::NoUninit>(numbers: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(numbers).to_vec()
}

/// Runs a kernel's `f32` variant on its parameters and bindings.
fn run(name: &str, buffers: &mut [Vec<u8>], extent: [usize; 3]) -> Result<(), Error> {
    let kernel: &Kernel = catalog().find(|kernel| kernel.name == name).expect("the kernel is in the catalog");
    let language = ShaderLanguage::Msl;
    let floats = kernel.floats().into_iter().map(|name| (name, Element::F32)).collect();
    let text = kernel.text(&Variant { language, subgroups: true, floats });
    let program = Program::compile(&text, kernel.entry, kernel.source(language).workgroup_size)?;
    program.dispatch(buffers, kernel.grid(language, extent, u32::MAX).map(|n| n as u32), Order::Forward)
}

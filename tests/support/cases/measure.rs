//! What devices are measured by; kernels that have no public function.

use super::{By::*, Family};
use crate::{Case, Data, Leeway, Recorder, context};
use bitnet_wgpu::{Element, Kernel, internals::catalog, params};

pub const OPS: Family = &[
    ("completion", Wgsl, completion),
    ("f16_subnormals", Kernels, f16_subnormals),
    ("fused_multiply_add", Device, fused_multiply_add),
    ("matrix_places", Device, matrix_places),
    ("measure::arithmetic", Device, arithmetic),
    ("measure::read_bandwidth", Device, read_bandwidth),
];

fn kernel(name: &str) -> &'static Kernel {
    catalog().find(|kernel| kernel.name == name).expect("the kernel is in the catalog")
}

fn f16_subnormals() -> Vec<Case> {
    // Codes 1 and 2 in every field: Σ (1 + 2·2)·4^f·2^-24.
    let y = 5.0 * 85.0 / 16_777_216.0;
    let case = Case::exact("codes 1 and 2".to_owned(), vec![Data::F32(vec![y])], |r| {
        let (word, y) = (r.upload(&[0x00aa_0055u32], [1])?, r.output::<f32>([1])?);
        r.encoder.dispatch(kernel("f16_subnormals"), &(), &[&word, &y], [1, 1, 1])?;
        r.watch_all(&y);
        Ok(())
    });
    vec![case]
}

/// Every place of a matrix is some lane's, once. Without tensor cores in SPIR-V there is nothing to see.
fn matrix_places() -> Vec<Case> {
    let record = |r: &mut Recorder| {
        let capabilities = r.encoder.context().capabilities();
        let unit = capabilities.tensor_cores.iter().find(|unit| unit.element == Element::F16);
        let size = unit.filter(|_| capabilities.matrix_elements).map(|unit| unit.size as usize);
        let Some(size) = size else { return Ok(()) };
        let y = r.output::<u32>([2 * size * size])?;
        let kernel = kernel(&format!("matrix_places_{size}"));
        r.encoder.dispatch(kernel, &(), &[&y], [1, 1, 1])?;
        r.watch_all(&y);
        Ok(())
    };
    let check = |got: &[Data], _| {
        let [Data::U32(places)] = got else { return Ok(()) };
        for half in places.chunks(places.len() / 2) {
            let mut sorted = half.to_vec();
            sorted.sort_unstable();
            if !sorted.iter().copied().eq(0..half.len() as u32) {
                return Err(format!("places {half:?}"));
            }
        }
        Ok(())
    };
    vec![Case::new("a matrix".to_owned(), record, check).to_the_bit()]
}

params! { struct CompletionParams { place: u32, word: u32, first: u32 } }

/// Two submissions, of three passes and of one.
fn completion() -> Vec<Case> {
    let case = Case::exact("passes".to_owned(), vec![Data::U32(vec![7, 102, 55, 7])], |r| {
        let log = r.upload(&[7u32; 4], [4])?;
        for (place, word, first) in [(1, 100, 1), (1, 100, 0), (1, 100, 0), (2, 55, 1)] {
            r.encoder.dispatch(
                kernel("completion"),
                &CompletionParams { place, word, first },
                &[&log],
                [1, 1, 1],
            )?;
        }
        r.watch_all(&log);
        Ok(())
    });
    vec![case]
}

/// On a device that does not fuse, nothing is left of a square.
fn fused_multiply_add() -> Vec<Case> {
    let factors: Vec<f32> = (0..64u32).map(|i| f32::from_bits(0x4000_0001 + i * 130_007)).collect();
    let lost: Vec<f32> = factors.iter().map(|&v| v.mul_add(v, -(v * v))).collect();
    let record = move |r: &mut Recorder| {
        let (factor, y) = (r.upload(&factors, [64])?, r.output::<f32>([64])?);
        r.encoder.dispatch(kernel("fused_multiply_add"), &(), &[&factor, &y], [64, 1, 1])?;
        r.watch_all(&y);
        Ok(())
    };
    let check = move |got: &[Data], leeway| {
        let fused = leeway != Leeway::Device || context().capabilities().fused_multiply_add;
        got[0].check(&Data::F32(if fused { lost.clone() } else { vec![0.0; 64] }), leeway)
    };
    vec![Case::new("squares".to_owned(), record, check)]
}

params! { struct Params { quads: u32 } }

fn read_bandwidth() -> Vec<Case> {
    [1, 5, 3000, 20_000].map(reading).into()
}

/// Every thread's own: the exclusive or of the quads that it reads.
fn reading(quads: usize) -> Case {
    const THREADS: usize = 2 * 256;
    let source: Vec<u32> = (0..4 * quads as u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
    let mut sink = vec![0; 4 * THREADS];
    source.iter().enumerate().for_each(|(i, word)| sink[i % (4 * THREADS)] ^= word);
    Case::exact(format!("{quads} quads"), vec![Data::U32(sink)], move |r| {
        let (source, sink) = (r.upload(&source, [4 * quads])?, r.output::<u32>([4 * THREADS])?);
        r.encoder.dispatch(
            kernel("read_bandwidth"),
            &Params { quads: quads as u32 },
            &[&source, &sink],
            [2, 1, 1],
        )?;
        r.watch_all(&sink);
        Ok(())
    })
}

params! { struct ArithmeticParams { turns: u32, factor: f32, term: f32 } }

/// Factors of 1 and -1 keep numbers whole, so that they are exact.
fn arithmetic() -> Vec<Case> {
    [(0, 1.0, 1.0), (3, 1.0, 2.0), (50, 1.0, -1.0), (7, -1.0, 3.0)]
        .map(|(turns, factor, term)| chains(turns, factor, term))
        .into()
}

fn chains(turns: u32, factor: f32, term: f32) -> Case {
    const THREADS: usize = 2 * 256;
    let chain = |start: f32| (0..2 * turns).fold(start, |v, _| v * factor + term);
    let of = |thread: usize| (0..8).map(|i| chain((thread % 256 + i) as f32)).sum::<f32>();
    let sink = (0..4 * THREADS).map(|i| of(i / 4)).collect();
    Case::exact(format!("{turns} turns by {factor}, {term}"), vec![Data::F32(sink)], move |r| {
        let sink = r.output::<f32>([4 * THREADS])?;
        r.encoder.dispatch(
            kernel("arithmetic"),
            &ArithmeticParams { turns, factor, term },
            &[&sink],
            [2, 1, 1],
        )?;
        r.watch_all(&sink);
        Ok(())
    })
}

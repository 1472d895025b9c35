//! BitLinear, by GEMV and by GEMM.

use super::{
    Data, Leeway, Near, Problem, U,
    quantize::{is_half, pack, row_words, rows, sums},
};
use bitnet_wgpu::{Element, Kernel, PackedTernary, Scales, bitnet, params};
use rand::RngExt;
use support::{SHAPES, rng};

params! { struct Params { rows: u32, tokens: u32, words: u32, add: u32 } }

pub fn problems(kernel: &'static Kernel) -> Vec<Problem> {
    // A GEMV takes the tokens that come, though it is meant for few.
    let mut problems: Vec<_> = SHAPES.iter().flat_map(|&shape| [Element::F32, Element::F16].map(|y| problem(kernel, shape, y))).collect();
    problems.push(problem(kernel, (2, 9, 2560), Element::F32));
    for shape in [(0, 5, 16), (1, 7, 3), (2, 9, 17), (5, 31, 127), (9, 65, 129), (65, 67, 191)] {
        problems.extend([Element::F32, Element::F16].map(|y| adding(kernel, shape, y)));
    }
    problems
}

pub fn problem(kernel: &'static Kernel, shape: (usize, usize, usize), element: Element) -> Problem {
    let Operands { inputs, params, products } = Operands::new(kernel, shape);
    let ((m, n, k), y) = (shape, Data::floats(element, &products));
    Problem::exact(kernel, format!("{m} × {n} × {k} {element:?}"), params, inputs, vec![y], [n, m, 1])
}

/// A product on top of what is there.
fn adding(kernel: &'static Kernel, shape: (usize, usize, usize), element: Element) -> Problem {
    let Operands { inputs, mut params, products } = Operands::new(kernel, shape);
    let (m, n, k) = shape;
    params.add = 1;
    let mut rng = rng(37);
    let y = Data::floats(element, &(0..m * n).map(|_| rng.random_range(-50.0..50.0)).collect::<Vec<f32>>());
    let base = y.to_f32();
    let judge = move |got: &[Data], _: Leeway| {
        let sum = |(&base, &product): (&f32, &f32)| {
            let exact = f64::from(base) + f64::from(product);
            // The product is rounded here, and there or not; so is the sum.
            Near { exact, error: U * (2.0 * f64::from(product).abs() + 1.01 * exact.abs()) }
        };
        got[5].check_near(base.iter().zip(&products).map(sum))
    };
    let buffers = inputs.into_iter().chain([y]).collect();
    Problem::updating(kernel, format!("{m} × {n} × {k} {element:?}, added"), params, buffers, [n, m, 1], Box::new(judge))
}

/// What a multiplication is of, and what it makes.
struct Operands {
    inputs: Vec<Data>,
    params: Params,
    products: Vec<f32>,
}

impl Operands {
    fn new(kernel: &'static Kernel, (m, n, k): (usize, usize, usize)) -> Self {
        let mut rng = rng((m + n + k) as u64);
        let values: Vec<i8> = (0..n * k).map(|_| rng.random_range(-1..=1)).collect();
        // Every row has its own scale, so that a wrong row shows.
        let scales: Vec<f32> = (0..n).map(|_| rng.random_range(0.01..2.0)).collect();
        let w = PackedTernary::from_values(n, k, &values, Scales::Segments(scales.iter().map(|&scale| (1, scale)).collect())).unwrap();
        let x = bitnet::quantize_activations_cpu(&rows(13, m, k), m, k).unwrap();
        let products = bitnet::bitlinear_quantized_cpu(&x, &w).unwrap();

        let packed = (0..m).flat_map(|token| pack(is_half(kernel), x.row(token))).collect();
        let sums = (0..m).flat_map(|token| sums(x.row(token))).collect();
        let inputs =
            vec![Data::U32(w.words().to_vec()), Data::F32(scales), Data::U32(packed), Data::F32(x.scales.clone()), Data::I32(sums)];
        let params = Params { rows: n as u32, tokens: m as u32, words: row_words(k) as u32, add: 0 };
        Self { inputs, params, products }
    }
}

//! Correct kernels run; planted faults are caught, each by the check that the README names.
#![cfg(target_os = "linux")]

mod common;

use common::{MATRIX_SQUARE, ORDERS, ROW_SUMS, bytes, row_sums_data, run_row_sums, spoiled};
use msl_host::{Error, Fault, Order, Program};

#[test]
fn the_sound_kernel_runs_in_any_order() {
    for order in ORDERS {
        assert!(run_row_sums(ROW_SUMS, order).unwrap(), "{order:?}");
    }
}

/// Whether the spoiled text's results are right, in each of [`ORDERS`].
fn results(piece: &str, by: &str) -> [bool; 4] {
    let text = spoiled(ROW_SUMS, piece, by);
    ORDERS.map(|order| run_row_sums(&text, order).unwrap())
}

/// The spoiled text's fault, which must be the same in all orders, and the message in the first
/// order.
fn fault(piece: &str, by: &str) -> (Fault, String) {
    let text = spoiled(ROW_SUMS, piece, by);
    let mut faults = ORDERS.map(|order| match run_row_sums(&text, order) {
        Err(Error::Run { fault, message }) => (fault, message),
        other => panic!("{piece} → {by}, {order:?}: {other:?}"),
    });
    assert!(faults.iter().all(|(fault, _)| *fault == faults[0].0), "{faults:?}");
    std::mem::replace(&mut faults[0], (Fault::OutOfBounds, String::new()))
}

const BARRIER: &str = "threadgroup_barrier(mem_flags::mem_threadgroup);";

#[test]
fn a_missing_barrier_shows_in_some_order() {
    // In reverse, the last SIMD-group runs first, so thread 0 happens to find everything written.
    assert_eq!(results(BARRIER, ""), [false, true, false, false]);
}

#[test]
fn threadgroup_memory_is_not_zero() {
    assert_eq!(
        results(
            "if (lane == 0) parts[simd] = part;",
            "if (lane == 0 && simd > 0) parts[simd] = part;"
        ),
        [false; 4]
    );
}

#[test]
fn wrong_results() {
    assert_eq!(results("#define SIMDS 4u", "#define SIMDS 3u"), [false; 4]);
    assert_eq!(results("i = local;", "i = local + 1;"), [false; 4]);
    assert_eq!(results("int total = 0;", "int total = 1;"), [false; 4]);
}

#[test]
fn indices_out_of_bounds() {
    let (found, message) = fault("i < params.columns", "i <= params.columns");
    assert_eq!(found, Fault::OutOfBounds);
    assert!(message.contains("0 bytes beyond the end of buffer"), "{message}");
    let (found, message) = fault("sum += product(x + row", "sum += product(x - 1000 + row");
    assert_eq!(found, Fault::OutOfBounds);
    assert!(message.contains("before the start of buffer 1"), "{message}");
    // Within the padding: found by the changed padding, not by the guard page.
    let (found, message) = fault("y[row] = total", "y[row + 1] = total");
    assert_eq!(found, Fault::OutOfBounds);
    assert!(message.contains("beside buffer 3"), "{message}");
}

#[test]
fn swapped_buffers() {
    let text = spoiled(&spoiled(ROW_SUMS, "buffer(1)", "buffer(9)"), "buffer(2)", "buffer(1)")
        .replace("buffer(9)", "buffer(2)");
    let outcome = run_row_sums(&text, Order::Forward);
    assert!(matches!(outcome, Err(Error::Run { fault: Fault::OutOfBounds, .. })), "{outcome:?}");
    let text = spoiled(
        &spoiled(ROW_SUMS, "buffer(1)", "buffer(4)"),
        "device int* y           [[buffer(3)]],",
        "device int* y [[buffer(1)]],",
    );
    let outcome = run_row_sums(&text, Order::Forward);
    assert!(matches!(outcome, Err(Error::Buffers { expected: 5, found: 4 })), "{outcome:?}");
}

#[test]
fn simd_operations_in_divergent_code() {
    let (found, message) = fault(
        "const int part = simd_sum(sum);",
        "int part = 0;\nif (lane < 16) part = simd_sum(sum);",
    );
    assert_eq!(found, Fault::DivergentSimd);
    assert!(message.contains("lane 16 waits at row_sums-"), "{message}");
    let (found, message) = fault("const int part =", "if (lane == 5) return;\nconst int part =");
    assert_eq!(found, Fault::DivergentSimd);
    assert!(message.contains("lane 5 has returned"), "{message}");
}

#[test]
fn barriers_in_divergent_code() {
    let (found, message) = fault(BARRIER, &format!("if (simd != 1) {BARRIER}"));
    assert_eq!(found, Fault::DivergentBarrier);
    assert!(message.contains("has returned"), "{message}");
    let (found, message) = fault(BARRIER, &format!("if (simd == 1) {BARRIER}\nelse {BARRIER}"));
    assert_eq!(found, Fault::DivergentBarrier);
    assert!(message.contains("waits at row_sums-"), "{message}");
}

#[test]
fn too_much_threadgroup_memory() {
    let (found, message) = fault("parts[SIMDS];", "parts[8193];");
    assert_eq!(found, Fault::ThreadgroupMemory);
    assert!(message.contains("`parts`"), "{message}");
    assert_eq!(results("parts[SIMDS];", "parts[8192];"), [true; 4]);
}

#[test]
fn what_does_not_compile() {
    let error =
        |piece, by| run_row_sums(&spoiled(ROW_SUMS, piece, by), Order::Forward).unwrap_err();
    let compiler_says = |piece, by, what: &str| match error(piece, by) {
        Error::Compile { output } => assert!(output.contains(what), "{piece} → {by}: {output}"),
        other => panic!("{piece} → {by}: {other}"),
    };
    compiler_says("simd_sum(sum)", "simd_summ(sum)", "'simd_summ'");
    // Metal has this function, but no kernel uses it, so it is left out.
    compiler_says("simd_sum(sum)", "simd_product(sum)", "'simd_product'");
    compiler_says("int sum = 0;", "int sum = params.rows = 0;", "params");
    compiler_says("int sum = 0;", "int sum = max(0, 0.0f);", "ambiguous");
    compiler_says("<metal_stdlib>", "<cmath>", "cmath");

    let text_says = |piece, by, what: &str| match error(piece, by) {
        Error::Text(found) => assert!(found.contains(what), "{piece} → {by}: {found}"),
        other => panic!("{piece} → {by}: {other}"),
    };
    text_says("#define THREADS 128u", "#define THREADS 64u", "the text has 64");
    text_says("[[max_total_threads_per_threadgroup(THREADS)]]", "", "no limit");
    text_says("[[buffer(1)]]", "", "`x` has no attribute");
    text_says("kernel void row_sums(", "kernel void sums(", "no kernel `row_sums`");
}

#[test]
fn matrices() {
    let run = |text: &str, order| {
        // The bits of the halves 0 to 4.
        let halves = [0u16, 0x3c00, 0x4000, 0x4200, 0x4400];
        let x = |row: usize, column: usize| (row * 3 + column) % 5;
        let given = (0..64).flat_map(|at| halves[x(at / 8, at % 8)].to_ne_bytes()).collect();
        let product = |at: usize| (0..8).map(|k| x(at / 8, k) * x(at % 8, k)).sum::<usize>() as f32;
        let expected: Vec<u8> =
            (0..64).flat_map(|at| product(63 - at).powi(2).to_ne_bytes()).collect();
        let mut buffers = [given, vec![0; 256]];
        Program::compile(text, "matrix_square", [32, 1, 1])
            .unwrap()
            .dispatch(&mut buffers, [1, 1, 1], order)
            .map(|()| buffers[1] == expected)
    };
    for order in ORDERS {
        assert!(run(MATRIX_SQUARE, order).unwrap(), "{order:?}");
        // Other lanes' stores are not visible yet.
        let unordered =
            spoiled(MATRIX_SQUARE, "simdgroup_barrier(mem_flags::mem_threadgroup);", "");
        assert!(!run(&unordered, order).unwrap(), "{order:?}");
        let divergent = spoiled(
            MATRIX_SQUARE,
            "simdgroup_store(c, block, 8);",
            "if (lane != 3) simdgroup_store(c, block, 8);",
        );
        assert!(
            matches!(run(&divergent, order), Err(Error::Run { fault: Fault::DivergentSimd, .. })),
            "{order:?}"
        );
        let transposed = spoiled(
            MATRIX_SQUARE,
            "simdgroup_load(b, x, 8, ulong2(0, 0), true);",
            "simdgroup_load(b, x, 8);",
        );
        assert!(!run(&transposed, order).unwrap(), "{order:?}");
    }
}

#[test]
fn after_a_fault_others_run() {
    let wild = Program::compile(
        &spoiled(ROW_SUMS, "y[row] = total", "y[row * 100000000] = total"),
        "row_sums",
        [128, 1, 1],
    )
    .unwrap();
    let sound = Program::compile(ROW_SUMS, "row_sums", [128, 1, 1]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for seed in 0..20 {
                    let (mut buffers, expected) = row_sums_data();
                    assert!(wild.dispatch(&mut buffers, [3, 1, 1], Order::Random(seed)).is_err());
                    sound.dispatch(&mut buffers, [3, 1, 1], Order::Random(seed)).unwrap();
                    assert_eq!(buffers[3], expected);
                }
            });
        }
    });
    let found = sound.dispatch(&mut [bytes([1, 1])], [1, 1, 1], Order::Forward);
    assert!(matches!(found, Err(Error::Buffers { expected: 4, found: 1 })), "{found:?}");
}

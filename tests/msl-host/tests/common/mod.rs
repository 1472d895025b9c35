//! The correct kernels of `kernels/`, and planting faults in them.
#![allow(dead_code, reason = "each test uses a part")]

use msl_host::{Error, Order, Program};

pub const ROW_SUMS: &str = include_str!("../kernels/row_sums.metal");
pub const MATRIX_SQUARE: &str = include_str!("../kernels/matrix_square.metal");
pub const ORDERS: [Order; 4] = [Order::Forward, Order::Reverse, Order::Random(1), Order::Random(2)];

/// The text with `piece`, which must occur exactly once, replaced.
pub fn spoiled(text: &str, piece: &str, by: &str) -> String {
    assert_eq!(text.matches(piece).count(), 1, "`{piece}`");
    text.replace(piece, by)
}

pub fn bytes(words: impl IntoIterator<Item = i32>) -> Vec<u8> {
    words.into_iter().flat_map(i32::to_ne_bytes).collect()
}

pub const ROWS: i32 = 3;
pub const COLUMNS: i32 = 300;

/// The buffers of `row_sums`, and its expected output.
pub fn row_sums_data() -> ([Vec<u8>; 4], Vec<u8>) {
    let x = |row: i32, i: i32| row * 7 - i % 13;
    let w = |i: i32| i % 5 - 1;
    let y = (0..ROWS).map(|row| (0..COLUMNS).map(|i| x(row, i) * w(i)).sum());
    let given = bytes((0..ROWS * COLUMNS).map(|at| x(at / COLUMNS, at % COLUMNS)));
    (
        [bytes([ROWS, COLUMNS]), given, bytes((0..COLUMNS).map(w)), bytes([-1; ROWS as usize])],
        bytes(y),
    )
}

/// Runs a text of `row_sums` and returns whether its output is right.
pub fn run_row_sums(text: &str, order: Order) -> Result<bool, Error> {
    let (mut buffers, expected) = row_sums_data();
    Program::compile(text, "row_sums", [128, 1, 1])?.dispatch(
        &mut buffers,
        [ROWS as u32, 1, 1],
        order,
    )?;
    Ok(buffers[3] == expected)
}

//! Faults that only sanitizers see. Each of these ends the process; scripts/msl-sanitize runs them one by one and reads what they say.
#![cfg(target_os = "linux")]

mod common;

use common::{ROW_SUMS, run_row_sums, spoiled};
use msl_host::Order;

/// Right results for all that the sanitizer does not stop.
fn runs(piece: &str, by: &str) {
    let _ = run_row_sums(&spoiled(ROW_SUMS, piece, by), Order::Forward).unwrap();
}

#[test]
#[ignore = "for the address sanitizer"]
fn address_threadgroup_index() {
    runs("int total = 0;", "threadgroup const int* p = parts; int total = p[SIMDS] == 5;");
}

#[test]
#[ignore = "for the address sanitizer"]
fn address_read_of_padding() {
    runs("y[row] = total;", "y[row] = total + (y[3] == 5);");
}

#[test]
#[ignore = "for the undefined-behaviour sanitizer"]
fn undefined_shift() {
    runs("int total = 0;", "int total = 0 * (1 << (row + 31));");
}

#[test]
#[ignore = "for the undefined-behaviour sanitizer"]
fn undefined_alignment() {
    runs("int total = 0;", "int total = (*(device const int4*)(x + 1)).x == 12345;");
}

#[test]
#[ignore = "for the thread sanitizer"]
fn race_without_barrier() {
    runs("threadgroup_barrier(mem_flags::mem_threadgroup);", "");
}

#[test]
#[ignore = "for the thread sanitizer"]
fn race_of_threadgroups() {
    runs("y[row] = total;", "y[row] = total, y[0] += 1;");
}

#[test]
#[ignore = "sound: no sanitizer may complain"]
fn sound() {
    assert!(run_row_sums(ROW_SUMS, Order::Forward).unwrap());
}

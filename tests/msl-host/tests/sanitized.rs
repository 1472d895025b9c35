//! Faults that only sanitizers find. Each ends the process, so scripts/msl-sanitize runs them one
//! by one and checks the sanitizer's report.
#![cfg(target_os = "linux")]

mod common;

use common::{ROW_SUMS, run_row_sums, spoiled};
use msl_host::Order;

/// Runs the spoiled text, which must finish unless the sanitizer stops it.
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

//! Faults that the strict check finds; scripts/msl-check runs this.
#![cfg(target_os = "linux")]

mod common;

use common::{MATRIX_SQUARE, ROW_SUMS, spoiled};
use msl_host::{Error, check};

#[test]
#[ignore = "needs clang 19, which scripts/msl-check installs"]
fn planted_faults_are_found() {
    check(ROW_SUMS).unwrap();
    check(MATRIX_SQUARE).unwrap();
    let faults = [
        ("device const int* a, device", "device const int* a, threadgroup", "no matching function"),
        ("device const int* a,", "thread const int* a,", "no matching function"),
        ("device const int* a, device const int* b", "const int* a, const int* b", "pointer or reference without an address space"),
        ("int total = 0;", "int total = 0; int* p = &total;", "pointer or reference without an address space"),
        ("int total = 0;", "int total = 0; int& r = total;", "pointer or reference without an address space"),
        ("uint rows, columns;", "uint rows, columns; int* pointer;", "pointer or reference without an address space"),
        ("int total = 0;", "int total = 0; params.rows = 1;", "read-only"),
        ("int total = 0;", "int total = 0; w[0] = 1;", "read-only"),
        ("int total = 0;", "double total = 0;", "double"),
        ("int total = 0;", "int total = 2.5f;", "literal-conversion"),
        ("int total = 0;", "float part_f = sum; int total = part_f;", "float-conversion"),
        ("int total = 0;", "int total = 0; float f = sum; half h = f;", "implicit-float-conversion"),
        ("int total = 0;", "int total = 0; char c = sum;", "implicit-int-conversion"),
        ("int total = 0;", "int total = 0; ulong l = 7; uint u = l;", "shorten-64-to-32"),
        ("int total = 0;", "int total = 0; float4 v = half4(1.0h);", "no viable conversion"),
        ("int total = 0;", "int total = 0; float4 v = int4(1) + float4(2.0);", "invalid operands"),
        ("int total = 0;", "int total = *new int(0);", "new"),
        ("int total = 0;", "int total = 0; goto end; end:", "goto"),
        ("int total = 0;", "static int total;", "static"),
        ("int total = 0;", "int total = 0; device int* d = parts;", "cannot initialize"),
        ("int total = 0;", "int total = 0; device int* d = (device int*)parts;", "mismatching address spaces"),
        ("parts[SIMDS];", "parts[SIMDS]; threadgroup float more[8192];", "more than 32 KiB"),
        ("struct Params {", "struct Base { virtual int f(); };\nstruct Params {", "virtual"),
        ("[[max_total_threads_per_threadgroup(THREADS)]]", "", "no max_total_threads_per_threadgroup"),
        ("#define THREADS 128u", "#define THREADS 2048u", "2048 threads"),
        ("[[buffer(2)]]", "[[buffer(1)]]", "two parameters in [[buffer(1)]]"),
        ("[[buffer(2)]]", "", "`w` has no attribute"),
        ("device const int* w     [[buffer(2)]]", "threadgroup int& w", "nothing allocates memory for `w`"),
    ];
    let mut missed = Vec::new();
    for (piece, by, what) in faults {
        let text = spoiled(ROW_SUMS, piece, by);
        let found = match check(&text) {
            Err(Error::Compile { output }) => output,
            Err(Error::Text(found)) => found,
            other => format!("{other:?}"),
        };
        if !found.contains(what) {
            missed.push(format!("{by}: not `{what}` but {found}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

//! naga's Metal translation of a WGSL kernel runs unchanged and agrees with the hand-written
//! kernel.
#![cfg(target_os = "linux")]

mod common;

use common::{ORDERS, ROWS, row_sums_data};
use msl_host::Program;
use naga::back::msl;

fn metal(wgsl: &str, entry: &str, bindings: u8) -> String {
    let module = naga::front::wgsl::parse_str(wgsl).unwrap();
    let mut validator = naga::valid::Validator::new(
        naga::valid::ValidationFlags::all(),
        naga::valid::Capabilities::all(),
    );
    let info = validator.validate(&module).unwrap();
    let at = |i| naga::ResourceBinding { group: 0, binding: u32::from(i) };
    let target = |i| msl::BindTarget { buffer: Some(i + 1), mutable: true, ..Default::default() };
    let resources = msl::EntryPointResources {
        resources: (0..bindings).map(|i| (at(i), target(i))).collect(),
        immediates_buffer: Some(0),
        sizes_buffer: Some(bindings + 1),
    };
    let options = msl::Options {
        lang_version: (3, 1),
        per_entry_point_map: [(entry.to_owned(), resources)].into(),
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        ..Default::default()
    };
    msl::write_string(&module, &info, &options, &msl::PipelineOptions::default()).unwrap().0
}

#[test]
fn naga_agrees() {
    let wgsl = include_str!("kernels/row_sums.wgsl");
    for (spoiled, right) in [(wgsl.to_owned(), true), (wgsl.replace("parts[3]", "parts[2]"), false)]
    {
        let program =
            Program::compile(&metal(&spoiled, "row_sums", 3), "row_sums", [128, 1, 1]).unwrap();
        for order in ORDERS {
            let (buffers, expected) = row_sums_data();
            let sizes = buffers[1..]
                .iter()
                .flat_map(|buffer| (buffer.len() as u32).to_ne_bytes())
                .collect();
            let mut buffers: Vec<_> = buffers.into_iter().chain([sizes]).collect();
            program.dispatch(&mut buffers, [ROWS as u32, 1, 1], order).unwrap();
            assert_eq!(buffers[3] == expected, right, "{order:?}");
        }
    }
}

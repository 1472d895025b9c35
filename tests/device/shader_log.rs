//! Logs that kernels write while they run.

use bitnet_wgpu::{
    ErrorKind, Kernel,
    kernel::{Part, Source, Type::*, read_write},
    telemetry::{LogValue, ShaderLog},
};
use support::{block_on, context};

static NOTES: Kernel = Kernel::new(
    "notes",
    &[],
    &[read_write("shader_log", U32)],
    &[Source::wgsl(&[
        ShaderLog::PART,
        Part::new(
            "notes",
            "@group(0) @binding(0) var<storage, read_write> shader_log: array<atomic<u32>>;
            @compute @workgroup_size(WG_X, WG_Y, WG_Z)
            fn notes(@builtin(global_invocation_id) id: vec3<u32>) {
                if id.x >= 100u { return; }
                log_u32(id.x, 1u, id.x * id.x);
                log_i32(id.x, 2u, -i32(id.x));
                log_f32(id.x, 3u, f32(id.x) / 2.0);
            }",
        ),
    ])],
);

fn noted(log: &ShaderLog) {
    let mut encoder = context().encoder("notes");
    encoder.dispatch(&NOTES, &(), &[log.tensor()], [100, 1, 1]).unwrap();
    encoder.submit().unwrap();
}

#[test]
fn all_records_of_a_kernel_are_read() {
    NOTES.check().unwrap();
    let log = ShaderLog::new(context(), 300).unwrap();
    noted(&log);
    let read = block_on(log.read()).unwrap();
    let mut records = read.records;
    assert_eq!((records.len(), read.lost), (300, 0));
    records.sort_by_key(|record| (record.thread, record.label));
    for (thread, records) in records.chunks(3).enumerate() {
        let n = thread as u32;
        let values =
            [LogValue::U32(n * n), LogValue::I32(-(n as i32)), LogValue::F32(n as f32 / 2.0)];
        for (label, (record, value)) in records.iter().zip(values).enumerate() {
            assert_eq!((record.thread, record.label, record.value), (n, label as u32 + 1, value));
        }
    }
    assert_eq!(records[8].to_string(), "thread 2, label 3: 1");
}

#[test]
fn a_full_log_counts_lost_records() {
    let log = ShaderLog::new(context(), 7).unwrap();
    assert_eq!(block_on(log.read()).unwrap().records, []);
    noted(&log);
    noted(&log);
    let read = block_on(log.read()).unwrap();
    assert_eq!((read.records.len(), read.lost), (7, 593));
    log.clear().unwrap();
    assert_eq!(block_on(log.read()).unwrap().records, []);
    for capacity in [0, (1 << 26) + 1] {
        assert_eq!(ShaderLog::new(context(), capacity).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

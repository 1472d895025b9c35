// Functions that append numbers to shader_log, the binding of a ShaderLog (src/gpu/observe/shader_log.rs). Its first word counts the
// records that were appended, modulo 2^32. Each record has four words: thread, label, type, bits.

fn log_u32(thread: u32, label: u32, value: u32) { log_record(thread, label, 0u, value); }
fn log_i32(thread: u32, label: u32, value: i32) { log_record(thread, label, 1u, bitcast<u32>(value)); }
fn log_f32(thread: u32, label: u32, value: f32) { log_record(thread, label, 2u, bitcast<u32>(value)); }

fn log_record(thread: u32, label: u32, kind: u32, bits: u32) {
    let capacity = arrayLength(&shader_log) / 4u - 1u;
    let at = 4u * (1u + atomicAdd(&shader_log[0], 1u) % capacity);
    atomicStore(&shader_log[at], thread);
    atomicStore(&shader_log[at + 1u], label);
    atomicStore(&shader_log[at + 2u], kind);
    atomicStore(&shader_log[at + 3u], bits);
}

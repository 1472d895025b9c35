//! Memory over many submissions: in a process of its own, since that of all its threads is counted.

use bitnet_wgpu::Context;
use bitnet_wgpu::bitnet::BitLinear;
use support::{block_on, own_process, rng, ternary};

#[test]
fn ten_thousand_submissions_take_no_more_memory() {
    const OWN: &str = "BITNET_TEST_MEMORY";
    if std::env::var_os(OWN).is_none() {
        let mut own =
            own_process("", module_path!(), "ten_thousand_submissions_take_no_more_memory");
        let output = own.env(OWN, "1").output().unwrap();
        assert!(
            output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"),
            "{output:?}"
        );
        return;
    }
    let context = block_on(Context::new()).unwrap();
    let w = ternary(&mut rng(3), 16, 64).upload(&context).unwrap();
    let step = |wait: bool| {
        let x = context.upload(&[1f32; 64], [1, 64]).unwrap();
        let mut encoder = context.encoder("many");
        BitLinear::new(&w).forward(&mut encoder, &x).unwrap();
        let submission = encoder.submit().unwrap();
        if wait {
            submission.wait().unwrap();
        }
    };
    // Drivers keep more and more in the beginning: NVIDIA's 21 MB in the first 11 000, and 1 MB in
    // the 190 000 that follow.
    (0..10_000).for_each(|i| step(i % 100 == 99));
    let (pool, resident) = (context.memory_stats(), resident_bytes());
    (0..10_000).for_each(|i| step(i % 100 == 99));
    let after = context.memory_stats();
    assert_eq!(
        (after.misses, after.live_bytes, after.cached_bytes),
        (pool.misses, pool.live_bytes, pool.cached_bytes)
    );
    assert!(after.hits >= pool.hits + 10_000);
    if let (Some(before), Some(after)) = (resident, resident_bytes()) {
        assert!(after < before + (16 << 20), "resident memory grew from {before} to {after} bytes");
    }
    context.trim_memory();
    assert_eq!(context.memory_stats().cached_bytes, 0);
}

/// What the process holds, where /proc tells.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

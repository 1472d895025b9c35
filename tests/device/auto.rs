//! Ops on slices of the host, on both sides: what they compute, where, and what they refuse.

use bitnet_wgpu::{
    Context, ContextOptions, Error, ErrorKind, Result,
    auto::{Answer, Auto, Target, Why},
    reference,
    weights::{PackedTernary, Scales},
};
use rand::{RngExt, rngs::SmallRng};
use std::{fs, path::PathBuf};
use support::{U, block_on, context, files::Directory, floats, rng, ternary, warnings};

/// An [`Auto`] for one side, or for both.
fn auto(target: Option<Target>) -> Auto {
    Auto::new(Some(context())).unwrap().always(target).unwrap()
}

fn values(answer: Result<Answer>, on: Target) -> Vec<f32> {
    let answer = answer.unwrap();
    assert_eq!((answer.ran.on, answer.ran.why), (on, Why::Always), "{}", answer.ran);
    answer.values
}

#[test]
fn both_sides_compute_the_op() {
    let mut rng = rng(1);
    let [a, b] = [3000, 3000].map(|n| floats(&mut rng, n, 4.0));
    let w = ternary(&mut rng, 40, 100);
    for target in [Target::Cpu, Target::Gpu] {
        let auto = auto(Some(target));
        let weights = auto.weights(w.clone()).unwrap();
        let each = |f: fn(f32) -> f32| a.iter().map(|&x| f(x)).collect::<Vec<_>>();
        let pairs =
            |f: fn(f32, f32) -> f32| a.iter().zip(&b).map(|(&a, &b)| f(a, b)).collect::<Vec<_>>();
        assert_eq!(values(auto.add(&a, &b), target), pairs(|a, b| a + b));
        assert_eq!(values(auto.mul(&a, &b), target), pairs(|a, b| a * b));
        assert_eq!(values(auto.relu2(&a), target), each(|x| x.max(0.0) * x.max(0.0)));
        assert_eq!(
            values(auto.bitlinear(&a, 30, &weights), target),
            reference::bitlinear(&a, 30, &w).unwrap()
        );
        // Others within what cases of these ops say more closely.
        let within = |error: f32, what: &str, got: Vec<f32>, expected: Vec<f32>| {
            assert_eq!(got.len(), expected.len(), "{what}");
            for (got, expected) in got.into_iter().zip(expected) {
                assert!(
                    (got - expected).abs() <= error * expected.abs().max(1.0),
                    "{what} {target:?}: {got}, not {expected}"
                );
            }
        };
        let near =
            |what: &str, got: Vec<f32>, expected: Vec<f32>| within(3e-6, what, got, expected);
        near("silu", values(auto.silu(&a), target), each(reference::silu));
        near("gelu", values(auto.gelu(&a), target), each(reference::gelu));
        near(
            "softmax",
            values(auto.softmax(&a, 100), target),
            a.chunks(100).flat_map(reference::softmax).collect(),
        );
        let exact: f64 = a.iter().map(|&v| f64::from(v)).sum();
        let sum = values(auto.sum(&a), target);
        assert!(
            sum.len() == 1 && (f64::from(sum[0]) - exact).abs() <= 40.0 * U * 4.0 * 3000.0,
            "{sum:?}, not {exact}"
        );
        // A hundred products of up to 16 each.
        let error = 100.0 * (100.0 * 16.0) * U as f32;
        within(
            error,
            "matmul",
            values(auto.matmul(&a, &b, [30, 100, 30]), target),
            reference::matmul(&a, &b, [30, 100, 30]).unwrap(),
        );
        // Nothing.
        assert!(values(auto.silu(&[]), target).is_empty());
        assert!(values(auto.softmax(&[], 5), target).is_empty());
        assert_eq!(values(auto.sum(&[]), target), [0.0]);
        assert_eq!(values(auto.matmul(&[], &[], [2, 0, 2]), target), [0.0; 4]);
        assert!(values(auto.bitlinear(&[], 0, &weights), target).is_empty());
    }
}

/// Random ternary weights with a scale per 16 columns.
fn by_group(rng: &mut SmallRng, n: usize, k: usize) -> PackedTernary {
    let values: Vec<i8> = (0..n * k).map(|_| rng.random_range(-1..=1)).collect();
    let scales = floats(rng, n * k.div_ceil(16), 2.0);
    PackedTernary::from_values(n, k, &values, Scales::Groups { size: 16, scales }).unwrap()
}

/// Awkward and random shapes, since instruction sets take rows and columns by different numbers.
#[test]
fn promised_ops_are_bit_identical_on_both_sides() {
    let mut rng = rng(3);
    let [cpu, gpu] = [Target::Cpu, Target::Gpu].map(|target| auto(Some(target)));
    let bits = |answer: Result<Answer>| -> Vec<u32> {
        answer.unwrap().values.into_iter().map(f32::to_bits).collect()
    };
    let awkward = [[1, 1, 1], [2, 16, 64], [3, 17, 63], [9, 100, 65], [5, 33, 300]];
    let random: Vec<_> =
        (0..6).map(|_| [30, 200, 700].map(|most| rng.random_range(1..most))).collect();
    for (i, [m, n, k]) in awkward.into_iter().chain(random).enumerate() {
        let w = if i % 3 == 2 { by_group(&mut rng, n, k) } else { ternary(&mut rng, n, k) };
        let x = floats(&mut rng, m * k, 4.0);
        let weights = [&cpu, &gpu].map(|auto| auto.weights(w.clone()).unwrap());
        let shape = format!("{m} tokens, {n} × {k}");
        assert_eq!(
            bits(cpu.bitlinear(&x, m, &weights[0])),
            bits(gpu.bitlinear(&x, m, &weights[1])),
            "{shape}"
        );
        assert_eq!(bits(cpu.add(&x, &x)), bits(gpu.add(&x, &x)), "{shape}");
        assert_eq!(bits(cpu.mul(&x, &x)), bits(gpu.mul(&x, &x)), "{shape}");
        assert_eq!(bits(cpu.relu2(&x)), bits(gpu.relu2(&x)), "{shape}");
    }
}

#[test]
fn small_calls_stay_on_the_processor() {
    let auto = auto(None);
    let calls: Vec<_> = (0..20).map(|_| auto.add(&[1.0; 64], &[2.0; 64]).unwrap()).collect();
    assert!(calls.iter().all(|answer| answer.values == [3.0; 64]));
    // The way to a GPU and back takes more than 64 additions. It is tried, and the first time
    // compiles; of calls that wait for another program there are few.
    let (stayed, tried): (Vec<_>, Vec<_>) =
        calls.iter().map(|answer| answer.ran).partition(|ran| ran.on == Target::Cpu);
    assert!(stayed.len() >= 15 && tried.iter().any(|ran| ran.why == Why::Trial), "{tried:?}");
    let expected = stayed.iter().rev().find(|ran| ran.why == Why::Expected).unwrap().to_string();
    assert!(
        expected.starts_with("add on the CPU, which should be faster: ")
            && expected.contains(" on the GPU; took "),
        "{expected}"
    );
}

#[test]
fn without_a_gpu_all_runs_on_the_processor() {
    let auto = Auto::new(None).unwrap();
    let answer = auto.gelu(&[1.0]).unwrap();
    assert_eq!((answer.ran.on, answer.ran.why, answer.ran.gpu), (Target::Cpu, Why::NoGpu, None));
    assert!(
        answer.ran.to_string().starts_with("gelu on the CPU, since there is no GPU: "),
        "{}",
        answer.ran
    );
    assert!(matches!(auto.always(Some(Target::Gpu)), Err(Error::Invalid { .. })));
}

#[test]
fn bad_arguments_fail_on_both_sides() {
    let w = ternary(&mut rng(2), 4, 8);
    for target in [Some(Target::Cpu), Some(Target::Gpu), None] {
        let auto = auto(target);
        let weights = auto.weights(w.clone()).unwrap();
        let refused = [
            auto.add(&[1.0], &[]),
            auto.mul(&[], &[1.0]),
            auto.softmax(&[1.0; 5], 2),
            auto.softmax(&[1.0; 5], 0),
            auto.matmul(&[1.0; 6], &[1.0; 6], [2, 3, 3]),
            auto.matmul(&[1.0; 5], &[1.0; 6], [2, 3, 2]),
            auto.matmul(&[], &[], [usize::MAX, 2, 0]),
            auto.matmul(&[], &[], [usize::MAX, 0, 2]),
            auto.bitlinear(&[1.0; 9], 1, &weights),
            auto.bitlinear(&[1.0; 8], usize::MAX, &weights),
        ];
        for (i, refused) in refused.into_iter().enumerate() {
            assert!(matches!(refused, Err(Error::Length { .. })), "{i} on {target:?}: {refused:?}");
        }
    }
    // Weights that were made without a GPU, or for another.
    let elsewhere = Auto::new(None).unwrap().weights(w).unwrap();
    assert!(matches!(
        auto(Some(Target::Gpu)).bitlinear(&[1.0; 8], 1, &elsewhere),
        Err(Error::Dispatch { .. })
    ));
}

#[test]
fn threads_share_it() {
    let auto = auto(None);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let auto = &auto;
            scope.spawn(move || {
                for n in (0..60).map(|i| 1 + i * 97 % 5000) {
                    let x = floats(&mut rng(seed), n, 1.0);
                    let answer = auto.add(&x, &x).unwrap();
                    assert!(
                        answer.values.iter().zip(&x).all(|(y, x)| *y == x + x),
                        "{}",
                        answer.ran
                    );
                }
            });
        }
    });
}

fn open(cache: impl Into<Option<PathBuf>>) -> Context {
    block_on(Context::open(ContextOptions::default().kernel_cache(cache.into()))).unwrap()
}

/// A file that reads as if it had been kept: the header of another, and a text.
fn with_text(sound: &[u8], text: &[u8]) -> Vec<u8> {
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    [&sound[..29], &hash.to_le_bytes(), text].concat()
}

#[test]
fn what_was_learned_is_kept() {
    let directory = Directory::temporary();
    let context = open(directory.0.join("cache"));
    let auto = Auto::new(Some(&context)).unwrap();
    let x = vec![1.0; 300_000];
    let call = |auto: &Auto, n: usize| {
        [auto.add(&x[..n], &x[..n]).unwrap().ran, auto.gelu(&x[..n]).unwrap().ran]
    };
    let sizes = [64, 5000, 300_000];
    for n in sizes.into_iter().cycle().take(60) {
        call(&auto, n);
    }
    let path = auto.save_measurements().unwrap();
    let text = String::from_utf8_lossy(&fs::read(&path).unwrap()[37..]).into_owned();
    assert!(
        text.starts_with("link ") && text.contains("\nadd 64 ") && text.contains("\ngelu 256 "),
        "{text}"
    );

    let context = open(directory.0.join("cache"));
    let told = warnings(|| {
        for n in sizes {
            auto.save_measurements().unwrap();
            let (bytes, again) = (fs::read(&path).unwrap(), Auto::new(Some(&context)).unwrap());
            assert_eq!(again.save_measurements().unwrap(), path);
            assert_eq!(fs::read(&path).unwrap(), bytes);
            for (before, after) in call(&auto, n).into_iter().zip(call(&again, n)) {
                assert_eq!((after.cpu, after.gpu), (before.cpu, before.gpu), "{before}; {after}");
                assert!(after.on == before.on || before.why == Why::Trial, "{before}; {after}");
            }
            // It learns on.
            again.save_measurements().unwrap();
            assert_ne!(fs::read(&path).unwrap(), bytes);
        }
    });
    assert!(told.is_empty(), "{told:?}");
}

#[test]
fn estimates_of_other_machines_are_ignored() {
    let directory = Directory::temporary();
    let context = open(directory.0.join("cache"));
    let path = Auto::new(Some(&context)).unwrap().save_measurements().unwrap();
    let sound = with_text(&fs::read(&path).unwrap(), b"link 1e9 0 64\nadd 64 0 cpu 1 3\n");
    // An expectation that no machine has.
    let believed = || {
        Auto::new(Some(&context))
            .unwrap()
            .add(&[1.0; 64], &[1.0; 64])
            .unwrap()
            .ran
            .gpu
            .unwrap()
            .as_secs_f64()
            == 1.0
    };
    fs::write(&path, &sound).unwrap();
    assert!(believed());

    let changed = |at: usize| {
        sound
            .iter()
            .enumerate()
            .map(|(i, &byte)| if i == at { byte ^ 1 } else { byte })
            .collect::<Vec<u8>>()
    };
    let mut wrong: Vec<(String, Vec<u8>)> = vec![
        ("longer".into(), [&sound[..], b"x"].concat()),
        (
            "oversized".into(),
            with_text(&sound, &[&b"link 1e9 0."[..], &b"0".repeat(300_000), b" 64\n"].concat()),
        ),
        ("what was tuned".into(), [b"bitnet-wgpu tuning 1\n", &sound[21..]].concat()),
        ("no text".into(), with_text(&sound, &[0xff, 0xfe, b'\n'])),
        ("an unknown op".into(), with_text(&sound, b"link 1e9 0 64\nsub 64 0 cpu 1 3\n")),
        ("out of all range".into(), with_text(&sound, b"link 1e10 0 64\n")),
    ];
    let places = || (0..sound.len()).step_by(3);
    wrong.extend(places().map(|at| (format!("cut off at {at}"), sound[..at].to_vec())));
    wrong.extend(places().map(|at| (format!("a bit in {at}"), changed(at))));
    for (what, bytes) in wrong {
        fs::write(&path, bytes).unwrap();
        let told = warnings(|| assert!(!believed(), "{what}"));
        assert!(
            told.len() == 1
                && told[0].contains(&path.display().to_string())
                && told[0].contains("times are measured again"),
            "{what}: {told:?}"
        );
    }
    // No file at all.
    fs::remove_file(&path).unwrap();
    assert!(warnings(|| assert!(!believed())).is_empty());
}

#[test]
fn wrong_link_estimates_are_replaced() {
    let directory = Directory::temporary();
    let context = open(directory.0.join("cache"));
    let path = Auto::new(Some(&context)).unwrap().save_measurements().unwrap();
    fs::write(&path, with_text(&fs::read(&path).unwrap(), b"link 1e9 0 64\n")).unwrap();
    let auto = Auto::new(Some(&context)).unwrap();
    let call = || auto.add(&[1.0; 64], &[1.0; 64]).unwrap().ran;
    for _ in 0..63 {
        let ran = call();
        assert_eq!((ran.on, ran.gpu.unwrap().as_secs()), (Target::Cpu, 1));
    }
    let told = warnings(|| assert!(call().gpu.unwrap().as_secs_f64() < 0.5));
    assert!(told.len() == 1 && told[0].contains("times are measured again"), "{told:?}");
}

#[test]
fn what_two_processes_learn_is_kept_of_both() {
    let directory = Directory::temporary();
    let context = open(directory.0.join("cache"));
    let [first, second] =
        [(); 2].map(|()| Auto::new(Some(&context)).unwrap().always(Some(Target::Cpu)).unwrap());
    first.add(&[1.0; 64], &[1.0; 64]).unwrap();
    second.silu(&[1.0; 64]).unwrap();
    let path = first.save_measurements().unwrap();
    assert_eq!(second.save_measurements().unwrap(), path);
    let text = String::from_utf8_lossy(&fs::read(&path).unwrap()[37..]).into_owned();
    assert!(text.contains("\nadd 64 ") && text.contains("\nsilu "), "{text}");
}

#[test]
fn without_a_folder_nothing_is_kept() {
    let directory = Directory::temporary();
    for auto in [Auto::new(None), Auto::new(Some(&open(None))), Auto::new(Some(context()))] {
        assert_eq!(auto.unwrap().save_measurements().unwrap_err().kind(), ErrorKind::Invalid);
    }
    let beyond =
        Auto::new(Some(&open(directory.write("file", "no folder").join("cache")))).unwrap();
    assert_eq!(beyond.save_measurements().unwrap_err().kind(), ErrorKind::Io);
}

//! Ops on slices of the host, on both sides: what they compute, where, and what they refuse.

use bitnet_wgpu::{
    Error, Result,
    auto::{Answer, Auto, Target, Why},
    bitnet, tensor,
};
use support::{U, context, floats, rng, ternary};

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
        let pairs = |f: fn(f32, f32) -> f32| a.iter().zip(&b).map(|(&a, &b)| f(a, b)).collect::<Vec<_>>();
        assert_eq!(values(auto.add(&a, &b), target), pairs(|a, b| a + b));
        assert_eq!(values(auto.mul(&a, &b), target), pairs(|a, b| a * b));
        assert_eq!(values(auto.relu2(&a), target), each(|x| x.max(0.0) * x.max(0.0)));
        assert_eq!(values(auto.bitlinear(&a, 30, &weights), target), bitnet::bitlinear_cpu(&a, 30, &w).unwrap());
        // Others within what cases of these ops say more closely.
        let within = |error: f32, what: &str, got: Vec<f32>, wanted: Vec<f32>| {
            assert_eq!(got.len(), wanted.len(), "{what}");
            for (got, wanted) in got.into_iter().zip(wanted) {
                assert!((got - wanted).abs() <= error * wanted.abs().max(1.0), "{what} {target:?}: {got}, not {wanted}");
            }
        };
        let near = |what: &str, got: Vec<f32>, wanted: Vec<f32>| within(3e-6, what, got, wanted);
        near("silu", values(auto.silu(&a), target), each(tensor::silu_cpu));
        near("gelu", values(auto.gelu(&a), target), each(tensor::gelu_cpu));
        near("softmax", values(auto.softmax(&a, 100), target), a.chunks(100).flat_map(tensor::softmax_cpu).collect());
        let exact: f64 = a.iter().map(|&v| f64::from(v)).sum();
        let sum = values(auto.sum(&a), target);
        assert!(sum.len() == 1 && (f64::from(sum[0]) - exact).abs() <= 40.0 * U * 4.0 * 3000.0, "{sum:?}, not {exact}");
        // A hundred products of up to 16 each.
        let error = 100.0 * (100.0 * 16.0) * U as f32;
        within(error, "matmul", values(auto.matmul(&a, &b, [30, 100, 30]), target), tensor::matmul_cpu(&a, &b, [30, 100, 30]).unwrap());
        // Nothing.
        assert!(values(auto.silu(&[]), target).is_empty());
        assert!(values(auto.softmax(&[], 5), target).is_empty());
        assert_eq!(values(auto.sum(&[]), target), [0.0]);
        assert_eq!(values(auto.matmul(&[], &[], [2, 0, 2]), target), [0.0; 4]);
        assert!(values(auto.bitlinear(&[], 0, &weights), target).is_empty());
    }
}

#[test]
fn small_calls_stay_on_the_processor() {
    let auto = auto(None);
    let calls: Vec<_> = (0..20).map(|_| auto.add(&[1.0; 64], &[2.0; 64]).unwrap()).collect();
    assert!(calls.iter().all(|answer| answer.values == [3.0; 64]));
    // The way to a GPU and back takes more than 64 additions. It is tried, and the first time compiles; of calls that wait for another program there are few.
    let (stayed, tried): (Vec<_>, Vec<_>) = calls.iter().map(|answer| answer.ran).partition(|ran| ran.on == Target::Cpu);
    assert!(stayed.len() >= 15 && tried.iter().any(|ran| ran.why == Why::Trial), "{tried:?}");
    let expected = stayed.iter().rev().find(|ran| ran.why == Why::Expected).unwrap().to_string();
    assert!(expected.starts_with("add on the CPU, which should be faster: ") && expected.contains(" on the GPU; took "), "{expected}");
}

#[test]
fn without_a_gpu_all_runs_on_the_processor() {
    let auto = Auto::new(None).unwrap();
    let answer = auto.gelu(&[1.0]).unwrap();
    assert_eq!((answer.ran.on, answer.ran.why, answer.ran.gpu), (Target::Cpu, Why::NoGpu, None));
    assert!(answer.ran.to_string().starts_with("gelu on the CPU, since there is no GPU: "), "{}", answer.ran);
    assert!(matches!(auto.always(Some(Target::Gpu)), Err(Error::Invalid { .. })));
}

#[test]
fn what_does_not_fit_is_refused_on_both_sides() {
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
    assert!(matches!(auto(Some(Target::Gpu)).bitlinear(&[1.0; 8], 1, &elsewhere), Err(Error::OtherDevice { .. })));
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
                    assert!(answer.values.iter().zip(&x).all(|(y, x)| *y == x + x), "{}", answer.ran);
                }
            });
        }
    });
}

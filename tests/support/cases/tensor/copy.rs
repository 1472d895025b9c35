//! `src/ops/tensor/copy.rs`

use crate::{Case, Data, Recorder, convert, floats, rng};
use bitnet_wgpu::tensor::{self, ElementType, Float, f16};

pub fn cases() -> Vec<Case> {
    let mut cases =
        vec![copies::<f32, f16>(), copies::<f16, f32>(), filled::<f32>(), filled::<f16>()];
    let floats = [
        0.0, -0.9, 1.5, -1.5, 126.9, 127.5, -128.9, -200.0, 3000.0, -3000.0, 65_504.0, 2.5, -2.5,
        1.0, -7.0, 100.0, 99.5,
    ];
    let large =
        [floats.as_slice(), &[3.0e9, -3.0e9, 5.0e9, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]]
            .concat();
    // `as` goes to the largest whole number, which is no float.
    let (to_i32, to_u32) =
        (|v: f32| (v as i32).min(2_147_483_520), |v: f32| (v as u32).min(4_294_967_040));
    let halves = convert::<f16>(&floats);
    let of_f16 =
        |to: &dyn Fn(f32) -> f32| halves.iter().map(|&v| to(v.into())).collect::<Vec<f32>>();
    cases.push(case(&large, Data::I32(large.iter().map(|&v| to_i32(v)).collect()), |r, x| {
        tensor::cast(x).forward::<i32>(&mut r.encoder)
    }));
    cases.push(case(&large, Data::U32(large.iter().map(|&v| to_u32(v)).collect()), |r, x| {
        tensor::cast(x).forward::<u32>(&mut r.encoder)
    }));
    cases.push(case(&large, Data::I8(large.iter().map(|&v| v as i8).collect()), |r, x| {
        tensor::cast(x).forward::<i8>(&mut r.encoder)
    }));
    cases.push(case(
        &halves,
        Data::I32(of_f16(&|v| v).iter().map(|&v| v as i32).collect()),
        |r, x| tensor::cast(x).forward::<i32>(&mut r.encoder),
    ));
    cases.push(case(
        &halves,
        Data::U32(of_f16(&|v| v).iter().map(|&v| v as u32).collect()),
        |r, x| tensor::cast(x).forward::<u32>(&mut r.encoder),
    ));
    cases.push(case(
        &halves,
        Data::I8(of_f16(&|v| v).iter().map(|&v| v as i8).collect()),
        |r, x| tensor::cast(x).forward::<i8>(&mut r.encoder),
    ));
    let whole = [
        0,
        1,
        -1,
        127,
        128,
        -128,
        -129,
        1000,
        -1000,
        16_777_215,
        65_000,
        i32::MAX,
        i32::MIN,
        16_777_217,
    ];
    let words = whole.map(|v| v as u32);
    let bytes: Vec<i8> = whole.map(|v| v.clamp(-128, 127) as i8).into();
    cases.push(case(&whole, Data::F32(whole.map(|v| v as f32).into()), |r, x| {
        tensor::cast(x).forward::<f32>(&mut r.encoder)
    }));
    cases.push(case(&whole, Data::I8(bytes.clone()), |r, x| {
        tensor::cast(x).forward::<i8>(&mut r.encoder)
    }));
    cases.push(case(&words, Data::F32(words.map(|v| v as f32).into()), |r, x| {
        tensor::cast(x).forward::<f32>(&mut r.encoder)
    }));
    let of_bytes: Vec<f32> = bytes.iter().map(|&v| v.into()).collect();
    cases.push(case(&bytes, Data::F32(of_bytes.clone()), |r, x| {
        tensor::cast(x).forward::<f32>(&mut r.encoder)
    }));
    cases.push(case(&bytes, Data::floats(f16::ELEMENT, &of_bytes), |r, x| {
        tensor::cast(x).forward::<f16>(&mut r.encoder)
    }));
    cases.push(case(&bytes, Data::I32(bytes.iter().map(|&v| v.into()).collect()), |r, x| {
        tensor::cast(x).forward::<i32>(&mut r.encoder)
    }));
    let (small, few) = ([0, 5, -5, 2048, -2047], [0.0, 5.0, -5.0, 2048.0, -2047.0]);
    cases.push(case(&small, Data::floats(f16::ELEMENT, &few), |r, x| {
        tensor::cast(x).forward::<f16>(&mut r.encoder)
    }));
    cases.push(case(&[0u32, 5, 2048], Data::floats(f16::ELEMENT, &[0.0, 5.0, 2048.0]), |r, x| {
        tensor::cast(x).forward::<f16>(&mut r.encoder)
    }));
    cases
}

/// A cast of a row.
fn case<X: ElementType, Y: ElementType>(
    x: &[X],
    expected: Data,
    cast: fn(&mut Recorder, &bitnet_wgpu::Tensor<X>) -> bitnet_wgpu::Result<bitnet_wgpu::Tensor<Y>>,
) -> Case {
    let x = x.to_vec();
    Case::exact(
        format!("{:?} to {:?}", X::ELEMENT, Y::ELEMENT),
        vec![expected],
        move |r: &mut Recorder| {
            let x = r.upload(&x, [x.len()])?;
            let y = cast(r, &x)?;
            r.watch_all(&y);
            Ok(())
        },
    )
    .of(X::ELEMENT)
    .of(Y::ELEMENT)
}

/// A row in every row of another type, the same in its own, and as it is.
fn copies<X: Float, Y: Float>() -> Case {
    let x = convert::<X>(&floats(&mut rng(1), 70, 9.0));
    let once: Vec<f32> = x.iter().map(|&x| x.into()).collect();
    let expected = vec![
        Data::floats(Y::ELEMENT, &once.repeat(3)),
        Data::floats(X::ELEMENT, &once.repeat(2)),
        Data::floats(X::ELEMENT, &once),
        Data::floats(X::ELEMENT, &once.iter().map(|v| 2.0 * v).collect::<Vec<_>>()),
    ];
    Case::exact(
        format!("{:?} to {:?}", X::ELEMENT, Y::ELEMENT),
        expected,
        move |r: &mut Recorder| {
            let (x, y) = (r.upload(&x, [70])?, r.output::<Y>([3, 70])?);
            tensor::copy(&x).forward_into(&mut r.encoder, &y)?;
            let broadcast = tensor::broadcast_to(&x, [2, 70]).forward(&mut r.encoder)?;
            let cast = tensor::cast(&x).forward::<X>(&mut r.encoder)?;
            r.watch_all(&y);
            r.watch_all(&broadcast);
            r.watch_all(&cast);
            let dx = tensor::broadcast_to(&x, [2, 70]).backward(&mut r.encoder, &broadcast)?;
            r.watch_all(&dx);
            Ok(())
        },
    )
    .of(X::ELEMENT)
    .of(Y::ELEMENT)
}

fn filled<T: Float>() -> Case {
    Case::exact(
        format!("fill {:?}", T::ELEMENT),
        vec![Data::floats(T::ELEMENT, &[-2.625; 130])],
        |r: &mut Recorder| {
            let y = r.output::<T>([130])?;
            tensor::fill(-2.625).forward_into(&mut r.encoder, &y)?;
            r.watch_all(&y);
            Ok(())
        },
    )
    .of(T::ELEMENT)
}

//! Where is computed: the adapters of a system, the choice among them, and several of them at once.

use bitnet_wgpu::{
    Adapters, Context, ContextOptions, Error, ErrorKind, Tensor,
    model::{Device, Model},
    tensor,
};
use std::thread;
use support::{block_on, context, warnings};

#[test]
fn software_adapters_are_chosen_by_name_only() {
    let (preferred, why) = block_on(Context::preferred(Default::default())).unwrap();
    let named =
        ["WGPU_ADAPTER_NAME", "WGPU_BACKEND"].iter().any(|name| std::env::var_os(name).is_some());
    assert_eq!(preferred.is_none(), context().capabilities().software && !named, "{why}");
    assert!(why.contains(&context().capabilities().adapter), "{why}");
}

#[test]
fn auto_names_the_reason_for_its_choice() {
    let (path, name) = (support::data("models").join("odd"), &context().capabilities().adapter);
    let load = |device: Device<'_>| {
        let mut layers = 0;
        let mut progress = |done: usize, all| layers = done.min(all);
        let model = Model::builder(&path).device(device).progress(&mut progress).build()?;
        assert_eq!(layers, model.config().layers);
        Ok::<_, Error>(model)
    };
    let plain = ContextOptions::default;
    let on_cpu = load(Device::Cpu).unwrap();
    assert!(on_cpu.context().is_none() && on_cpu.auto_reason().is_none());
    let on_gpu = load(Device::from(context())).unwrap();
    assert!(on_gpu.context().is_some() && on_gpu.auto_reason().is_none());
    // One that the caller names is taken, a software one too.
    let named = load(Device::Auto(plain().adapter(name.as_str()))).unwrap();
    assert_eq!(named.context().map(|context| &context.capabilities().adapter), Some(name));
    assert!(named.gpu_error().is_none() && named.auto_reason().unwrap().contains(name));
    let (preferred, why) = block_on(Context::preferred(plain())).unwrap();
    let placed = load(Device::Auto(plain())).unwrap();
    assert_eq!(placed.context().is_some(), preferred.is_some());
    assert_eq!((placed.auto_reason(), placed.gpu_error().is_none()), (Some(why.as_str()), true));

    // A GPU that must be there.
    let gpu = Model::builder(&path).gpu();
    assert!(gpu.footprint().unwrap().total() > 0);
    let gpu = gpu.build().unwrap();
    assert!(gpu.context().is_some() && gpu.auto_reason().is_none());
    let missing = load(Device::Gpu(plain().adapter("no such GPU"))).map(drop).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NoDevice);
    assert!(gpu.reload(Device::Gpu(plain())).unwrap().context().is_some());

    // One with too little memory, and one that is not there.
    for (options, kind) in [
        (plain().adapter(name.as_str()).memory_limit(1000), ErrorKind::OutOfMemory),
        (plain().adapter("no such GPU"), ErrorKind::NoDevice),
    ] {
        let mut placed = None;
        let told = warnings(|| placed = Some(load(Device::Auto(options.clone())).unwrap()));
        let model = placed.unwrap();
        let (why, error) = (model.auto_reason().unwrap(), model.gpu_error().unwrap());
        assert!(model.context().is_none() && error.kind() == kind, "{why}");
        assert!(why.starts_with("the CPU") && why.contains(&error.to_string()), "{why}");
        assert!(told.len() == 1 && told[0].contains(why), "{told:?}");
    }
    let missing = Model::open("no/such/model").unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Io, "what is wrong with files is an error");
}

#[test]
fn adapters_are_chosen_by_name_index_or_caller() {
    let all = block_on(Adapters::list(&ContextOptions::default())).all;
    assert!(
        all.iter()
            .enumerate()
            .all(|(at, adapter)| adapter.index == at
                && (adapter.score > 0) == adapter.refused.is_none()),
        "{all:?}"
    );
    let last = all.len() - 1;
    let name = all[last].capabilities.adapter.clone();
    let choose = |options: ContextOptions| block_on(Adapters::list(&options)).chosen;
    let by_function =
        choose(ContextOptions::default().adapter_by(|all| Some(all.last()?.index))).unwrap();
    assert_eq!(
        (by_function.index, choose(ContextOptions::default().adapter(last)).unwrap().index),
        (last, last)
    );
    let by_name =
        choose(ContextOptions::default().adapter(name[1..].to_uppercase().as_str())).unwrap();
    assert!(
        all[by_name.index].capabilities.adapter == name && by_name.why.contains("name"),
        "{by_name:?}"
    );
    let refused = |options: ContextOptions, words: &str| match block_on(Context::open(options)) {
        Err(Error::NoAdapter { reason, found }) => {
            assert!(reason.contains(words) && found.contains(&name), "{reason} ({found})")
        }
        other => panic!("{other:?}"),
    };
    refused(ContextOptions::default().adapter("no such adapter"), "`no such adapter`");
    refused(ContextOptions::default().adapter(""), "is empty");
    refused(
        ContextOptions::default().adapter(all.len()),
        &format!("adapter {} was asked for; there are {}", all.len(), all.len()),
    );
    refused(ContextOptions::default().adapter_by(|_| Some(usize::MAX)), "there are");
    refused(ContextOptions::default().adapter_by(|_| None), "chose none");
    // What is asked for is taken, a software adapter too.
    let (preferred, why) =
        block_on(Context::preferred(ContextOptions::default().adapter(by_name.index))).unwrap();
    assert!(preferred.is_some() && why.contains(&name), "{why}");
}

#[test]
fn contexts_on_all_adapters_work_side_by_side() {
    let all = block_on(Adapters::list(&ContextOptions::default())).all;
    let usable: Vec<usize> = all
        .iter()
        .filter(|adapter| adapter.refused.is_none())
        .map(|adapter| adapter.index)
        .collect();
    // One more of the first: where there is one adapter, there are two contexts still.
    let indices = usable.iter().chain(&usable[..1]);
    let contexts: Vec<_> = indices
        .map(|&index| block_on(Context::open(ContextOptions::default().adapter(index))).unwrap())
        .collect();
    thread::scope(|scope| {
        for (i, context) in (0u32..).zip(&contexts) {
            scope.spawn(move || {
                let x = context.upload(&[i as f32; 100], [100]).unwrap();
                for _ in 0..20 {
                    let mut encoder = context.encoder("side by side");
                    let y: Tensor<f32> = tensor::add(&x, &x).forward(&mut encoder).unwrap();
                    let _ = encoder.submit().unwrap();
                    assert_eq!(block_on(y.read()).unwrap(), [2.0 * i as f32; 100]);
                }
            });
        }
    });
    let [x, y] = [0, contexts.len() - 1].map(|at| contexts[at].upload(&[1f32], [1]).unwrap());
    let mixed = tensor::add(&x, &y).forward(&mut contexts[0].encoder("mixed"));
    assert!(matches!(mixed, Err(Error::Dispatch { .. })), "{mixed:?}");
}

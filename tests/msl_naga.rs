//! The WGSL of every kernel that has Metal text, on the same problems: as naga's Metal on the CPU, and on the device under test. Both must
//! make what the hand-written Metal makes (msl_twins.rs).
#![cfg(target_os = "linux")]

mod metal;

use bitnet_wgpu::{Element, Kernel, ShaderLanguage, catalog};
use metal::{
    Leeway, Problem, problems,
    run::{Host, on_device},
};
use msl_host::Order;
use support::contexts;

fn all_problems() -> impl Iterator<Item = (&'static Kernel, Vec<Problem>)> {
    catalog().filter(|kernel| kernel.source(ShaderLanguage::Msl).is_some()).map(|kernel| (kernel, problems(kernel)))
}

#[test]
fn metal_by_naga_equals_the_twins() {
    for (kernel, problems) in all_problems() {
        let mut host = Host::default();
        for problem in problems {
            for subgroups in if kernel.uses_subgroups() { &[true, false][..] } else { &[true] } {
                for order in [Order::Forward, Order::Random(4)] {
                    let got = host.run(&problem, &problem.variant(ShaderLanguage::Wgsl, *subgroups), order);
                    problem.assert(&got, Leeway::None, &format!("naga, subgroups {subgroups}, {order:?}"));
                }
            }
        }
    }
}

#[test]
fn the_device_equals_the_twins() {
    for context in contexts() {
        for (_, problems) in all_problems() {
            for problem in problems {
                if context.capabilities().f16 || problem.buffers.iter().all(|data| data.element() != Element::F16) {
                    let got = on_device(&context, &problem);
                    problem.assert(&got, Leeway::NeighbouringHalf, &format!("{:?}", context.capabilities()));
                }
            }
        }
    }
}

//! Every Metal text against a compiler that knows address spaces; scripts/msl-check runs this.
#![cfg(target_os = "linux")]

use bitnet_wgpu::{ShaderLanguage, catalog};

#[test]
#[ignore = "needs clang 19, which scripts/msl-check installs"]
fn every_text_passes() {
    let mut wrong = Vec::new();
    for kernel in catalog() {
        for variant in kernel.variants().into_iter().filter(|variant| variant.language == ShaderLanguage::Msl) {
            if let Err(error) = msl_host::check(&kernel.text(&variant)) {
                wrong.push(format!("{} {variant:?}:\n{error}", kernel.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

//! Writes every shader source to DIR as it is handed to wgpu, one file per variant:
//! `cargo run --example dump_shaders DIR`.

use bitnet_wgpu::{
    Element,
    internals::{KernelInternals as _, catalog},
    kernel::ShaderLanguage,
};
use std::{env, error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [directory] = &arguments[..] else { return Err("usage: dump_shaders DIR".into()) };
    if directory.starts_with('-') {
        return Err("usage: dump_shaders DIR".into());
    }
    let directory = Path::new(directory);
    fs::create_dir_all(directory)?;
    for kernel in catalog() {
        for variant in kernel.variants() {
            let mut name = kernel.name.to_owned();
            for (alias, element) in &variant.floats {
                name +=
                    &format!("-{alias}_{}", if *element == Element::F16 { "f16" } else { "f32" });
            }
            if !variant.subgroups {
                name += "-portable";
            } else if !variant.fused {
                name += "-unfused";
            }
            let extension = match variant.language {
                ShaderLanguage::Msl => "metal",
                ShaderLanguage::Spirv => "comp",
                _ => "wgsl",
            };
            fs::write(
                directory.join(format!("{name}.{extension}")),
                kernel.joined_source(&variant),
            )?;
        }
    }
    Ok(())
}

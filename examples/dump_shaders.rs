//! Writes every shader text to DIR as it is handed to wgpu, one file per variant. `cargo run --example dump_shaders DIR`

use bitnet_wgpu::{Element, ShaderLanguage, catalog};
use std::{env, fs, io, path::Path};

fn main() -> io::Result<()> {
    let Some(directory) = env::args().nth(1) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "usage: dump_shaders DIR"));
    };
    fs::create_dir_all(&directory)?;
    for kernel in catalog() {
        for variant in kernel.variants() {
            let mut name = kernel.name.to_owned();
            for (alias, element) in &variant.floats {
                name += &format!("-{alias}_{}", if *element == Element::F16 { "f16" } else { "f32" });
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
            fs::write(Path::new(&directory).join(format!("{name}.{extension}")), kernel.text(&variant))?;
        }
    }
    Ok(())
}

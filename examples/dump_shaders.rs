//! Writes every shader text to DIR as it is handed to wgpu, one file per variant: `cargo run --example dump_shaders DIR`. With a FOLDER after it, puts there
//! what Apple's tools made of those texts, DIR/NAME.metallib of DIR/NAME.metal, for `ContextOptions::cache`.

use bitnet_wgpu::{Element, ShaderLanguage, catalog};
use std::{env, error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (directory, folder) = match &arguments[..] {
        [option, ..] if option.starts_with('-') => return Err("usage: dump_shaders DIR [FOLDER]".into()),
        [directory] => (Path::new(directory), None),
        [directory, folder] => (Path::new(directory), Some(folder)),
        _ => return Err("usage: dump_shaders DIR [FOLDER]".into()),
    };
    fs::create_dir_all(directory)?;
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
            let (path, text) = (directory.join(format!("{name}.{extension}")), kernel.text(&variant));
            let Some(folder) = folder else {
                fs::write(path, text)?;
                continue;
            };
            let library = path.with_extension("metallib");
            if extension != "metal" || !library.exists() {
                continue;
            }
            if fs::read_to_string(&path)? != text {
                return Err(format!("{} is not the text of this version", path.display()).into());
            }
            // SAFETY: whoever names DIR has had Apple's tools make the libraries in it, of the texts beside them, and this is one of those.
            #[allow(unsafe_code)]
            unsafe {
                kernel.keep_metal_library(&variant, &fs::read(library)?, folder)?
            };
        }
    }
    Ok(())
}

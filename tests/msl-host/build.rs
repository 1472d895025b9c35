//! Does nothing but exist: packages with a build script get `OUT_DIR`, where compiled kernels are kept.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}

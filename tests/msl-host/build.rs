//! Needed only because cargo sets `OUT_DIR`, where compiled kernels are cached, just for packages
//! with a build script.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}

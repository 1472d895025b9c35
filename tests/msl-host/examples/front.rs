//! Checks Metal files for what Apple's compiler refuses:
//! `cargo run -p msl-host --example front FILE..`.

use msl_host::front;

fn main() -> std::io::Result<()> {
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path)?;
        if let Err(error) = front::check_all(&text) {
            println!("{path} {error}");
        }
    }
    Ok(())
}

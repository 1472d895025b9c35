//! Ops of bitnet-wgpu, of burn (https://burn.dev) and of oxbitnet
//! (https://crates.io/crates/oxbitnet, MIT) on the same GPU through Vulkan, in one program and in
//! turns: `cargo run --release -- products`, or `-- tensor`. A time is by the host's clock:
//! recording and submitting several calls, and the waiting for their end. All begin with data on
//! the device and make their results anew; burn has fusion and autotune on, and tunes before it is
//! timed.
//!
//! Building oxbitnet needs OpenSSL's headers, for its downloads; what is built does not need the
//! library. burn's kernels want a newer lavapipe than 22.3, in which they crash:
//! `scripts/newer-mesa`.

mod ours;
mod oxbitnet_side;
mod products;
mod tensor;
mod turns;

use bitnet_wgpu::{Context, ContextOptions, wgpu};
use burn::tensor::{Device, DeviceKind};
use lexopt::prelude::{Long, Value, ValueExt};
use std::path::PathBuf;

const USAGE: &str =
    "peers-gpu products [--tokens 1,16,128,512] [--attention 128,512] [--rounds 9] [--json FILE] [--no-burn] [--burn-wgsl] [--adapter NAME]
peers-gpu tensor [LARGEST SIDE] [--burn-wgsl] [--adapter NAME]

--tokens, --attention  how many tokens the products and attentions are of; --attention 0: none
--json                 what was found goes into \"ops\" of this file, beside what it has
--no-burn              without burn; --burn-wgsl: burn compiles to WGSL instead of SPIR-V
--adapter              a part of the adapter's name; burn takes its own default";

struct Args {
    /// The side of `tensor`; the other command without.
    largest: Option<usize>,
    products: products::Options,
    burn_wgsl: bool,
    no_burn: bool,
    adapter: Option<String>,
}

fn args() -> Result<Args, lexopt::Error> {
    let mut args = Args { largest: None, products: products::Options::default(), burn_wgsl: false, no_burn: false, adapter: None };
    let mut parser = lexopt::Parser::from_env();
    let list = |value: std::ffi::OsString| value.parse_with(|text| text.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>());
    let mut command = None;
    while let Some(arg) = parser.next()? {
        match arg {
            Value(value) if command.is_none() => match value.to_str() {
                Some("products") => command = Some(()),
                Some("tensor") => (command, args.largest) = (Some(()), Some(4096)),
                _ => return Err(Value(value).unexpected()),
            },
            Value(value) if args.largest.is_some() => args.largest = Some(value.parse()?),
            Long("tokens") => args.products.tokens = list(parser.value()?)?,
            Long("attention") => args.products.attention = list(parser.value()?)?,
            Long("rounds") => args.products.rounds = parser.value()?.parse::<usize>()?.max(1),
            Long("json") => args.products.json = Some(PathBuf::from(parser.value()?)),
            Long("no-burn") => args.no_burn = true,
            Long("burn-wgsl") => args.burn_wgsl = true,
            Long("adapter") => args.adapter = Some(parser.value()?.string()?),
            other => return Err(other.unexpected()),
        }
    }
    command.map(|()| args).ok_or_else(|| "products or tensor?".into())
}

fn main() {
    let args = args().unwrap_or_else(|error| {
        eprintln!("{error}\n\n{USAGE}");
        std::process::exit(2)
    });
    // SAFETY: only kernels of bitnet-wgpu run on this device.
    let experimental = unsafe { wgpu::ExperimentalFeatures::enabled() };
    let mut options = ContextOptions::default().experimental(experimental);
    if let Some(adapter) = &args.adapter {
        options = options.adapter(adapter.as_str());
    }
    let context = pollster::block_on(Context::open(options)).expect("there is a GPU");
    let open = if args.burn_wgsl { Device::wgpu } else { Device::vulkan };
    let burn = || open(DeviceKind::DefaultDevice);
    match args.largest {
        Some(largest) => tensor::compare(&context, &burn(), largest),
        None => products::compare(&context, (!args.no_burn).then(burn), &args.products),
    }
}

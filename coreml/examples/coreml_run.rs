//! Runs a package with Core ML on a Mac: `coreml_run MODEL PACKAGE STEPS IDS`, where ids are
//! separated by commas. Prints tokens per second for each choice of compute units, and how many
//! tokens are those that the CPU backend generates from the model. Fails if the first one differs
//! on the CPU. It has not run on a Mac yet.

#[cfg(target_os = "macos")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use bitnet_coreml::{ComputeUnits, run};
    use bitnet_wgpu::{
        Element,
        model::{GenerateOptions, Model},
    };

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, package, steps, ids] = arguments.try_into().map_err(
        |_| "usage: coreml_run MODEL PACKAGE STEPS IDS, where ids are separated by commas",
    )?;
    let ids = ids.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
    let steps: usize = steps.parse()?;
    let options = GenerateOptions::default().max_tokens(steps).kv_type(Element::F16);
    let model = Model::builder(model).cpu().build()?;
    let generation = model.generate_ids(&ids, &options.ignore_eos(true))?;
    let expected = generation
        .into_iter()
        .map(|token| Ok(token?.id))
        .collect::<bitnet_wgpu::Result<Vec<u32>>>()?;
    for units in [
        ComputeUnits::Cpu,
        ComputeUnits::CpuAndGpu,
        ComputeUnits::CpuAndNeuralEngine,
        ComputeUnits::All,
    ] {
        let ran = run(&package, &ids, steps, units)?;
        let agree = ran.tokens.iter().zip(&expected).take_while(|(x, y)| x == y).count();
        println!(
            "{units}: loaded in {:.1} s; prefill {:.1} tok/s; decode {:.1} tok/s; the first {agree} of {steps} tokens are those of the CPU backend",
            ran.load.as_secs_f64(),
            ids.len() as f64 / ran.prefill.as_secs_f64(),
            (steps.saturating_sub(1)) as f64 / ran.decode.as_secs_f64()
        );
        if units == ComputeUnits::Cpu && agree == 0 {
            return Err("the first token differs".into());
        }
    }
    Ok(())
}

#[cfg(not(target_os = "macos"))]
fn main() {
    eprintln!("Core ML is on macOS only");
    std::process::exit(2);
}

//! Runs cases in every language of a device.

use super::{cases::Case, trial::Trial};
use anyhow::Result;
use bitnet_wgpu::{Context, Error, ErrorKind, kernel::ShaderLanguage};
use indicatif::ProgressBar;
use pollster::block_on;
use std::time::{Duration, Instant};

/// What came of the cases.
#[derive(Debug, Default)]
pub struct Ran {
    pub languages: Vec<String>,
    /// Cases that agree, once for each language.
    pub agree: usize,
    pub failures: Vec<Failure>,
    /// Cases with `f16` tensors, on a device that has none.
    pub not_here: Vec<&'static str>,
    pub time: Duration,
}

/// A case that differs from its reference or reports an error.
#[derive(Debug)]
pub struct Failure {
    pub case: &'static str,
    pub language: String,
    pub error: String,
}

impl Ran {
    /// Number of cases that ran, once for each language.
    pub fn tried(&self) -> usize {
        self.agree + self.failures.len()
    }
}

/// Runs the cases. A device that is lost is opened again for the next one.
///
/// # Errors
/// If a lost device cannot be opened again.
pub fn all(context: &mut Context, cases: &[Case], bar: &ProgressBar) -> Result<Ran> {
    let (start, f16, languages) =
        (Instant::now(), context.capabilities().f16, context.capabilities().languages);
    let (here, not_here): (Vec<&Case>, Vec<&Case>) =
        cases.iter().partition(|case| f16 || !case.f16);
    let mut ran = Ran {
        languages: languages.iter().map(ToString::to_string).collect(),
        not_here: not_here.iter().map(|case| case.name).collect(),
        ..Ran::default()
    };
    bar.set_length((languages.len() * here.len()) as u64);
    for &language in languages {
        for case in &here {
            match one(context, language, case) {
                Ok(()) => ran.agree += 1,
                Err(error) => {
                    ran.failures.push(Failure {
                        case: case.name,
                        language: language.to_string(),
                        error: crate::text(&error),
                    });
                    if error
                        .downcast_ref::<Error>()
                        .is_some_and(|error| error.kind() == ErrorKind::Lost)
                    {
                        *context = block_on(context.recover())?;
                    }
                }
            }
            bar.inc(1);
        }
    }
    ran.time = start.elapsed();
    Ok(ran)
}

fn one(context: &Context, language: ShaderLanguage, case: &Case) -> Result<()> {
    let mut trial = Trial::new(&context.with_language(language)?, case.name);
    (case.run)(&mut trial)?;
    trial.finish()
}

//! `bitnet completions` and `bitnet man`: files for shells and for `man`.

use crate::say;
use anyhow::{Context as _, Result};
use clap::{Args, Command};
use clap_complete::{Shell, generate};
use std::path::PathBuf;

/// Prints the completions of a shell
#[derive(Args)]
pub struct Completions {
    /// Shell whose completions are printed
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub fn run(self, mut command: Command) -> Result<()> {
        let mut script = Vec::new();
        generate(self.shell, &mut command, "bitnet", &mut script);
        Ok(say(String::from_utf8(script)?)?)
    }
}

/// Writes a manual page for each command
#[derive(Args)]
pub struct ManualPages {
    /// Existing directory for the pages, as /usr/local/share/man/man1
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl ManualPages {
    pub fn run(self, command: Command) -> Result<()> {
        let directory = &self.directory;
        clap_mangen::generate_to(command.disable_help_subcommand(true), directory)
            .with_context(|| bitnet_wgpu::internals::files::display(directory).to_string())
    }
}

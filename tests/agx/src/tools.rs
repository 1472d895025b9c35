//! Runs the programs that `scripts/agx-check` sets up.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The folder of the programs.
pub struct Tools(pub PathBuf);

impl Tools {
    /// A command for `clang`, `opt` or `llvm-spirv`.
    pub fn command(&self, name: &str) -> Command {
        Command::new(self.0.join(format!("agx-{name}")))
    }

    /// The version of clang and the LLVM tools.
    ///
    /// # Errors
    /// If clang does not run or prints no version.
    pub fn clang_version(&self) -> Result<String, String> {
        let output =
            self.command("clang").arg("--version").output().map_err(|e| format!("clang: {e}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version =
            text.split_once("version ").and_then(|(_, rest)| rest.split_whitespace().next());
        version.map(str::to_owned).ok_or_else(|| format!("clang names no version: {text}"))
    }

    /// Runs this program again with `arguments`, on the driver `agx-vulkan` or `agx-opencl` for the
    /// GPU `gpu`. Returns all output, and on failure an error message, from the process itself or
    /// else the last lines of output.
    ///
    /// # Errors
    /// If the process cannot be started or its log not written.
    pub fn on_driver(
        &self,
        driver: &str,
        gpu: &str,
        arguments: &[&str],
        log: &Path,
    ) -> Result<(String, Option<String>), String> {
        let me = std::env::current_exe().map_err(|e| e.to_string())?;
        let file = std::fs::File::create(log).map_err(|e| format!("{}: {e}", log.display()))?;
        let mut command = Command::new(self.0.join(driver));
        command.arg(me).args(arguments).stdin(Stdio::null());
        command.stderr(file.try_clone().map_err(|e| e.to_string())?).stdout(file);
        command
            .env("AGX_GPU", gpu)
            .env("AGX_MESA_DEBUG", "shaders,shaderdb")
            .env("MESA_SHADER_CACHE_DISABLE", "1");
        // Disables bounds checks, since Metal has none.
        command.env("HK_PERFTEST", "norobust");
        let status = command.status().map_err(|e| format!("{driver}: {e}"))?;
        let bytes = std::fs::read(log).map_err(|e| format!("{}: {e}", log.display()))?;
        let printed = String::from_utf8_lossy(&bytes).into_owned();
        if status.success() {
            return Ok((printed, None));
        }
        let end = printed
            .rsplit_once(crate::FAILED)
            .map_or_else(|| tail(&printed), |(_, message)| message.to_owned());
        Ok((printed, Some(format!("{driver} as {gpu}: {status}\n{}", end.trim()))))
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Runs a program and ignores its output.
///
/// # Errors
/// The program's error output if it fails.
pub fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("{program}: {e}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

//! Whether kernels are compiled from MSL, the Metal Shading Language, or from WGSL.

use super::{environment::environment, metal::MetalGpu};
use crate::{
    error::{Error, Result},
    language::ShaderLanguage,
};

/// Overrides [`MslPolicy::Auto`].
const VARIABLE: &str = "BITNET_WGPU_MSL";

/// M1 and A14. SIMD reductions and SIMD-group matrices, which the MSL kernels use, begin with it.
const FIRST_FAMILY: u32 = 7;

/// Which GPUs run kernels that are compiled from MSL:
/// [`ContextOptions::msl`](crate::ContextOptions::msl).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MslPolicy {
    /// GPUs of Apple's family 7 (M1, A14) or later, in programs built for arm64, outside of the
    /// simulator. Where the environment has `BITNET_WGPU_MSL=1`, [`MslPolicy::Always`]; with `0`,
    /// [`MslPolicy::Never`]. A kernel whose MSL does not compile is compiled from WGSL, with a
    /// warning in the log that has the compiler's message.
    #[default]
    Auto,
    /// All GPUs under Metal. A kernel whose MSL does not compile is [`Error::Shader`]. Under other
    /// backends a context is not opened.
    Always,
    /// None: all kernels are compiled from WGSL.
    Never,
}

impl MslPolicy {
    /// The policy, with what the environment says in place of [`MslPolicy::Auto`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for values of the variable other than `0` and `1`.
    pub(crate) fn resolved(self) -> Result<Self> {
        match (self, environment(VARIABLE)) {
            (Self::Auto, Some(value)) => parse(&value),
            (policy, _) => Ok(policy),
        }
    }
}

fn parse(value: &str) -> Result<MslPolicy> {
    match value {
        "0" => Ok(MslPolicy::Never),
        "1" => Ok(MslPolicy::Always),
        _ => Err(Error::Invalid {
            op: VARIABLE,
            what: format!("`{value}` is not supported; 0 (never use MSL) or 1 (always) is needed"),
        }),
    }
}

/// What the choice depends on.
#[derive(Clone, Copy, Debug)]
pub struct MslSupport {
    pub backend: wgpu::Backend,
    /// Those of the device, or those that it would be opened with.
    pub features: wgpu::Features,
    /// [`MetalGpu::family`].
    pub family: Option<u32>,
    pub program: Program,
}

/// What this program was built for.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    pub arm64: bool,
    pub simulator: bool,
}

impl Program {
    const THIS: Self =
        Self { arm64: cfg!(target_arch = "aarch64"), simulator: cfg!(target_abi = "sim") };
}

/// The choice for one adapter or device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MslChoice {
    pub used: bool,
    /// Why, for people.
    pub reason: String,
}

impl MslSupport {
    /// That of a device of these features, in this program.
    pub fn of(backend: wgpu::Backend, features: wgpu::Features, gpu: Option<MetalGpu>) -> Self {
        Self { backend, features, family: gpu.and_then(|gpu| gpu.family), program: Program::THIS }
    }

    /// Refuses [`MslPolicy::Always`] where no MSL can run.
    ///
    /// # Errors
    /// [`Error::DeviceUnsupported`] under other backends than Metal, and on a device without
    /// `PASSTHROUGH_SHADERS`.
    pub fn check(self, policy: MslPolicy) -> Result<()> {
        match (policy, self.obstacle()) {
            (MslPolicy::Always, Some(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether MSL is used, and why. Where no MSL can run, it is not used under any policy.
    pub fn choose(self, policy: MslPolicy) -> MslChoice {
        let unused = |reason: String| MslChoice { used: false, reason };
        if self.backend != wgpu::Backend::Metal {
            return unused(format!("the backend is {}, and not Metal", self.backend));
        }
        if let Some(error) = self.obstacle() {
            return unused(error.to_string());
        }
        match policy {
            MslPolicy::Always => MslChoice {
                used: true,
                reason: format!("forced by ContextOptions::msl or {VARIABLE}=1"),
            },
            MslPolicy::Never => unused(format!("forbidden by ContextOptions::msl or {VARIABLE}=0")),
            MslPolicy::Auto => self
                .found_lacking()
                .map_or_else(|| MslChoice { used: true, reason: self.family_name() }, unused),
        }
    }

    /// What makes MSL impossible, even where it is forced.
    fn obstacle(self) -> Option<Error> {
        let passthrough = wgpu::Features::PASSTHROUGH_SHADERS;
        if self.backend != wgpu::Backend::Metal {
            return Some(Error::language(ShaderLanguage::Msl, self.backend));
        }
        (!self.features.contains(passthrough)).then(|| Error::missing_feature("MSL", passthrough))
    }

    /// What the kernels' MSL needs and this GPU or program lacks.
    fn found_lacking(self) -> Option<String> {
        let Program { arm64, simulator } = self.program;
        if simulator {
            return Some("the simulator has no SIMD reductions".into());
        }
        if !arm64 {
            return Some(
                "the program was built for x86_64, for which Metal compiles an older language"
                    .into(),
            );
        }
        if self.family.is_none_or(|family| family < FIRST_FAMILY) {
            return Some(format!(
                "{}; SIMD reductions and SIMD-group matrices need Apple{FIRST_FAMILY} or later",
                self.family_name()
            ));
        }
        // wgpu offers it on all of these families; a device may have been opened without.
        (!self.features.contains(wgpu::Features::SUBGROUP))
            .then(|| "the device was opened without subgroup operations".into())
    }

    fn family_name(self) -> String {
        self.family.map_or_else(
            || "the GPU is not Apple's".into(),
            |family| format!("the GPU is of family Apple{family}"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgpu::{
        Backend::{Metal, Vulkan},
        Features,
    };

    const NATIVE: Program = Program { arm64: true, simulator: false };
    const X86_64: Program = Program { arm64: false, simulator: false };
    const SIMULATOR: Program = Program { arm64: true, simulator: true };
    const ALL: Features = Features::PASSTHROUGH_SHADERS.union(Features::SUBGROUP);
    const NO_SUBGROUPS: Features = Features::PASSTHROUGH_SHADERS;

    fn support(
        backend: wgpu::Backend,
        family: Option<u32>,
        features: Features,
        program: Program,
    ) -> MslSupport {
        MslSupport { backend, features, family, program }
    }

    #[test]
    fn auto_uses_msl_where_it_compiles() {
        let cases = [
            ("M1, A14", support(Metal, Some(7), ALL, NATIVE), Ok("Apple7")),
            ("M2, A15", support(Metal, Some(8), ALL, NATIVE), Ok("Apple8")),
            ("M3, M4, A17", support(Metal, Some(9), ALL, NATIVE), Ok("Apple9")),
            ("M5", support(Metal, Some(10), ALL, NATIVE), Ok("Apple10")),
            ("A13", support(Metal, Some(6), NO_SUBGROUPS, NATIVE), Err("need Apple7")),
            ("iOS simulator", support(Metal, Some(2), NO_SUBGROUPS, SIMULATOR), Err("simulator")),
            (
                "a simulator that claims Apple7",
                support(Metal, Some(7), ALL, SIMULATOR),
                Err("simulator"),
            ),
            (
                "paravirtual GPU",
                support(Metal, Some(5), NO_SUBGROUPS, NATIVE),
                Err("family Apple5"),
            ),
            ("M1 under Rosetta", support(Metal, Some(7), ALL, X86_64), Err("x86_64")),
            ("AMD GPU of an Intel Mac", support(Metal, None, ALL, X86_64), Err("x86_64")),
            ("AMD GPU, arm64", support(Metal, None, ALL, NATIVE), Err("not Apple's")),
            ("Honeykrisp", support(Vulkan, None, ALL, NATIVE), Err("vulkan")),
            (
                "M1 opened without passthrough",
                support(Metal, Some(7), Features::SUBGROUP, NATIVE),
                Err("PASSTHROUGH_SHADERS"),
            ),
            (
                "M1 opened without subgroups",
                support(Metal, Some(7), NO_SUBGROUPS, NATIVE),
                Err("subgroup"),
            ),
        ];
        for (gpu, support, expected) in cases {
            let MslChoice { used, reason } = support.choose(MslPolicy::Auto);
            assert_eq!(used, expected.is_ok(), "{gpu}: {reason}");
            assert!(reason.contains(expected.unwrap_or_else(|words| words)), "{gpu}: {reason}");
            assert!(!support.choose(MslPolicy::Never).used, "{gpu}");
        }
    }

    #[test]
    fn forced_msl_needs_only_metal_and_passthrough() {
        let possible =
            [support(Metal, Some(5), NO_SUBGROUPS, NATIVE), support(Metal, None, ALL, X86_64)];
        for support in possible {
            assert!(
                support.check(MslPolicy::Always).is_ok() && support.choose(MslPolicy::Always).used,
                "{support:?}"
            );
        }
        let elsewhere = support(Vulkan, None, ALL, NATIVE);
        let said = |support: MslSupport| support.check(MslPolicy::Always).unwrap_err().to_string();
        assert_eq!(said(elsewhere), "MSL kernels cannot run on the vulkan backend");
        let without = support(Metal, Some(7), Features::SUBGROUP, NATIVE);
        assert!(said(without).starts_with("MSL needs the wgpu feature"));
        for support in [elsewhere, without] {
            assert!(!support.choose(MslPolicy::Always).used, "{support:?}");
            assert!(
                support.check(MslPolicy::Auto).is_ok() && support.check(MslPolicy::Never).is_ok(),
                "{support:?}"
            );
        }
    }

    #[test]
    fn variable_takes_zero_or_one() {
        assert_eq!(
            [parse("0").unwrap(), parse("1").unwrap()],
            [MslPolicy::Never, MslPolicy::Always]
        );
        for wrong in ["", "2", "true", " 1", "1 "] {
            assert!(matches!(parse(wrong), Err(Error::Invalid { op: VARIABLE, .. })), "{wrong:?}");
        }
    }
}

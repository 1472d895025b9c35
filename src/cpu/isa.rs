//! Instruction sets, chosen when the program runs.

/// An instruction set that this processor has: only this file makes one, after it has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Extension);

/// What integer products are computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// AVX-512 with VNNI: 64 products an instruction.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// AVX-VNNI: 32 products an instruction.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// AVX2: 32 products in 16 bits. It, and what is above it, has conversions of f16 (F16C)
    /// too.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The matrix products of Armv8.6 (Apple's M2 and later): 32 products an instruction, for two
    /// tokens or more.
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
    /// The dot products of Armv8.4: 16 products an instruction.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    /// What the compiler makes of loops.
    Portable,
}

impl Extension {
    /// Those of this architecture, the fastest first, and whether this processor has them.
    fn known() -> impl Iterator<Item = (Self, bool)> {
        #[cfg(target_arch = "x86_64")]
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
        #[cfg(target_arch = "x86_64")]
        let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        #[cfg(target_arch = "x86_64")]
        let special = [
            (Self::Avx512Vnni, avx2 && avx512 && is_x86_feature_detected!("avx512vnni")),
            (Self::AvxVnni, avx2 && is_x86_feature_detected!("avxvnni")),
            (Self::Avx2, avx2),
        ];
        #[cfg(target_arch = "aarch64")]
        let dot = std::arch::is_aarch64_feature_detected!("dotprod");
        #[cfg(target_arch = "aarch64")]
        let special = [
            (Self::NeonI8mm, dot && std::arch::is_aarch64_feature_detected!("i8mm")),
            (Self::NeonDot, dot),
        ];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let special = [];
        special.into_iter().chain([(Self::Portable, true)])
    }
}

impl Isa {
    /// Those that this processor has, the fastest first.
    pub fn all() -> impl Iterator<Item = Self> {
        Extension::known().filter_map(|(kind, there)| there.then_some(Self(kind)))
    }

    /// Those of this architecture that this processor lacks.
    #[cfg(test)]
    pub fn missing() -> impl Iterator<Item = Extension> {
        Extension::known().filter_map(|(kind, there)| (!there).then_some(kind))
    }

    /// Which one it is.
    pub fn kind(self) -> Extension {
        self.0
    }

    /// Whether activations lie as [`Extension::NeonI8mm`] takes them: of each pair of tokens, the first
    /// row has the lower halves of both columns, and the second the upper halves.
    pub fn takes_pairs(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "aarch64")]
            Extension::NeonI8mm => true,
            _ => false,
        }
    }

    /// The fastest that this processor has.
    pub fn best() -> Self {
        Self::all().next().unwrap_or(Self(Extension::Portable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints them: a script that emulates a processor sees whether its instructions were tested.
    #[test]
    fn instruction_sets_range_from_best_to_portable() {
        let all: Vec<_> = Isa::all().collect();
        println!("instruction sets: {:?}", all.iter().map(|isa| isa.kind()).collect::<Vec<_>>());
        assert_eq!(
            (all.first(), all.last()),
            (Some(&Isa::best()), Some(&Isa(Extension::Portable)))
        );
    }
}

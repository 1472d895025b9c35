//! Instruction sets, chosen when the program runs.

/// What integer products are computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// AVX-512 with VNNI: 64 products an instruction.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// AVX-VNNI: 32 products an instruction.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// AVX2: 32 products in 16 bits. It, and what is above it, has conversions of halves (F16C)
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

impl Isa {
    /// Those that processors of this architecture may have, the fastest first, and whether this one
    /// has them.
    pub fn known() -> impl Iterator<Item = (Self, bool)> {
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

    /// Those that this processor has, the fastest first.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::known().filter_map(|(isa, there)| there.then_some(isa))
    }

    /// Whether activations lie as [`Isa::NeonI8mm`] takes them: of each pair of tokens, the first
    /// row has the lower halves of both columns, and the second the upper halves.
    pub fn takes_pairs(self) -> bool {
        match self {
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => true,
            _ => false,
        }
    }

    /// The fastest that this processor has.
    pub fn best() -> Self {
        Self::all().next().unwrap_or(Self::Portable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints them: a script that emulates a processor sees whether its instructions were tested.
    #[test]
    fn what_this_processor_has_ends_with_what_all_have() {
        let all: Vec<_> = Isa::all().collect();
        println!("instruction sets: {all:?}");
        assert_eq!((all.first(), all.last()), (Some(&Isa::best()), Some(&Isa::Portable)));
    }
}

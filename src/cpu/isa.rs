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
    /// AVX2: 32 products in 16 bits. It, and what is above it, has conversions of halves (F16C) too.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The dot products of Armv8.4: 16 products an instruction.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    /// What the compiler makes of loops.
    Portable,
}

impl Isa {
    /// Those that this processor has, the fastest first.
    pub fn all() -> impl Iterator<Item = Self> {
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
        let special = [(Self::NeonDot, std::arch::is_aarch64_feature_detected!("dotprod"))];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let special = [];
        special.into_iter().filter_map(|(isa, there)| there.then_some(isa)).chain([Self::Portable])
    }

    /// The fastest that this processor has.
    pub fn best() -> Self {
        Self::all().next().unwrap_or(Self::Portable)
    }
}

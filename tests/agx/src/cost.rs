//! The cost of instructions; docs/internals/apple-gpu.md has the sources of the figures.

use crate::listing::Instruction;

/// Instructions of equal cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Float additions, multiplications and fused multiply-adds, in 16 and 32 bits.
    Float,
    /// Integer additions, bitwise operations, selections, moves.
    Integer,
    /// Integer multiplications, shifts, bit fields, conversions, rounding, reciprocals, powers.
    Slow,
    /// Reductions over a SIMD-group.
    Reduction,
    /// Prefix sums over a SIMD-group.
    Prefix,
    /// Shuffles and votes.
    Shuffle,
    /// Memory accesses, barriers, branches: not counted.
    Other,
}

impl Class {
    pub fn of(instruction: &Instruction) -> Self {
        match instruction.mnemonic.as_str() {
            "fadd" | "fmul" | "ffma" | "hadd" | "hmul" | "hfma" => Self::Float,
            "load" | "store" | "stack_load" | "stack_store" | "lload" | "lstore" | "latomic"
            | "atomic" => Self::Other,
            "if" | "else" | "while" | "pop_exec" | "wait" | "stop" => Self::Other,
            "imul" | "imadd" | "imsub" | "shl" | "shr" | "asr" | "bfi" | "bfeil" | "extr"
            | "bitrev" | "popcount" | "ffs" => Self::Slow,
            "floor" | "ceil" | "trunc" | "roundeven" | "rint" | "rcp" | "rsqrt" | "srsqrt" => {
                Self::Slow
            }
            "log2" | "exp2" | "sin_pt_1" | "sin_pt_2" => Self::Slow,
            "simd" | "quad" if instruction.operands.contains("prefix") => Self::Prefix,
            "simd" | "quad" => Self::Reduction,
            m if m.contains("_to_") => Self::Slow,
            m if m.contains("ballot") || m.contains("shuffle") => Self::Shuffle,
            m if m.starts_with("jmp") || m.contains("barrier") || m.contains("flush") => {
                Self::Other
            }
            _ => Self::Integer,
        }
    }
}

/// The cost of some instructions for one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub instructions: u64,
    /// Float operations among them.
    pub float: u64,
    /// Multiplications with or without an addition: fused ones of floats, or those of integers,
    /// whichever are more.
    pub multiplications: u64,
    /// Cycles of the pipe for floats and simple integer operations.
    pub fast: u64,
    /// Cycles of the pipe for slow operations, which runs in parallel.
    pub slow: u64,
}

impl Cost {
    pub fn of<'a>(code: impl IntoIterator<Item = &'a Instruction>) -> Self {
        let (mut sum, mut of_floats, mut of_integers) = (Self::default(), 0, 0);
        for instruction in code {
            let class = Class::of(instruction);
            let (fast, slow) = match (class, instruction.mnemonic.as_str()) {
                (Class::Float | Class::Integer, _) => (1, 0),
                (Class::Slow, "rcp") => (1, 6),
                (Class::Slow, "rsqrt" | "srsqrt") => (1, 8),
                (Class::Slow, _) => (1, 4),
                (Class::Reduction, _) => (24, 0),
                (Class::Prefix, _) => (18, 0),
                (Class::Shuffle, _) => (2, 0),
                (Class::Other, _) => (0, 0),
            };
            sum.instructions += 1;
            sum.float += u64::from(class == Class::Float);
            of_floats += u64::from(matches!(instruction.mnemonic.as_str(), "ffma" | "hfma"));
            of_integers += u64::from(matches!(instruction.mnemonic.as_str(), "imul" | "imadd"));
            sum.fast += fast;
            sum.slow += slow;
        }
        sum.multiplications = of_floats.max(of_integers);
        sum
    }

    /// Cycles of the busier pipe.
    pub fn cycles(&self) -> u64 {
        self.fast.max(self.slow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_run_side_by_side() {
        let code = |mnemonics: &[(&str, &str)]| -> Vec<Instruction> {
            let make = |&(mnemonic, operands): &(&str, &str)| Instruction {
                address: 0,
                mnemonic: mnemonic.into(),
                operands: operands.into(),
            };
            mnemonics.iter().map(make).collect()
        };
        let cost = Cost::of(&code(&[
            ("ffma", ""),
            ("and", ""),
            ("load", "r0, du0, 5, i32, x, a"),
            ("shr", ""),
            ("u32_to_f32", ""),
        ]));
        assert_eq!(cost, Cost { instructions: 5, float: 1, multiplications: 1, fast: 4, slow: 8 });
        assert_eq!(cost.cycles(), 8);
        let of_simd = Cost::of(&code(&[
            ("simd", "r4, r25, fadd"),
            ("simd", "r4, r25, fadd, prefix"),
            ("shuffle", "r4, r5, 1, xor"),
        ]));
        assert_eq!((of_simd.fast, of_simd.cycles()), (24 + 18 + 2, 44));
        assert_eq!(Cost::of(&code(&[("jmp_any", "-26"), ("wait", "a"), ("rcp", "")])).slow, 6);
    }
}

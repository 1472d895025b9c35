//! Splits a kernel into its hot loop and the rest.

use crate::{
    cost::Cost,
    listing::{Instruction, Listing},
};

/// A range of code addresses, `to` excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    from: u64,
    to: u64,
}

impl Span {
    fn holds(&self, address: u64) -> bool {
        (self.from..self.to).contains(&address)
    }

    fn encloses(&self, other: &Self) -> bool {
        self.from <= other.from && other.to <= self.to
    }

    fn cost(&self, code: &[Instruction]) -> Cost {
        Cost::of(code.iter().filter(|instruction| self.holds(instruction.address)))
    }
}

/// The cost of a kernel's parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// One iteration of the hot loop: the innermost loop that multiplies most in an iteration, and
    /// of those that multiply as often the dearest. (What is done to a product before it is stored
    /// may be a loop that takes longer.)
    pub turn: Cost,
    /// A separate, partial last iteration, if there is one that a branch can skip.
    pub last_turn: Option<Cost>,
    /// Everything else, counted once.
    pub outside: Cost,
    /// One iteration of each loop without the loops in it, in the order of their addresses.
    pub loops: Vec<Cost>,
    /// What is in no loop.
    pub straight: Cost,
}

/// Splits a kernel; `None` if it has no loop.
pub fn parts(listing: &Listing) -> Option<Parts> {
    let code = &listing.code;
    let mut loops = spans(code, |from, to| (to <= from).then_some(Span { from: to, to: from + 1 }));
    loops.sort_by_key(|span| (span.from, std::cmp::Reverse(span.to)));
    let innermost = loops
        .iter()
        .filter(|span| !loops.iter().any(|other| other != *span && span.encloses(other)));
    let hot =
        innermost.max_by_key(|span| (span.cost(code).multiplications, span.cost(code).cycles()))?;
    let turn = hot.cost(code);
    // A partial last iteration: code apart from all loops but those around the hot one, with at
    // least half its multiplications, skipped if no lane needs it. (Kernels skip other code too,
    // which multiplies less, and other loops.)
    let skipped = spans(code, |from, to| (to > from).then_some(Span { from: from + 1, to }));
    let last_turn = skipped.iter().find(|span| {
        let around = |other: &Span| other != hot && other.encloses(hot) && other.encloses(span);
        let apart = loops
            .iter()
            .all(|other| around(other) || span.to <= other.from || other.to <= span.from);
        apart
            && turn.multiplications > 0
            && 2 * span.cost(code).multiplications >= turn.multiplications
    });
    let outside = code.iter().filter(|instruction| {
        let address = instruction.address;
        !hot.holds(address) && !last_turn.is_some_and(|span| span.holds(address))
    });
    // The innermost loop around an instruction that is not in the last iteration.
    let around = |address| loops.iter().rposition(|span| span.holds(address));
    let own = |place| {
        let apart = |address| last_turn.is_some_and(|span| span.holds(address));
        Cost::of(code.iter().filter(|instruction| {
            !apart(instruction.address) && around(instruction.address) == place
        }))
    };
    Some(Parts {
        turn,
        last_turn: last_turn.map(|span| span.cost(code)),
        outside: Cost::of(outside),
        loops: (0..loops.len()).map(|place| own(Some(place))).collect(),
        straight: own(None),
    })
}

/// The spans that `of` makes from the jumps' source and target addresses.
fn spans(code: &[Instruction], of: impl Fn(u64, u64) -> Option<Span>) -> Vec<Span> {
    code.iter().filter_map(|instruction| of(instruction.address, instruction.target()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code from mnemonics, ten bytes apart. `jmp_any N` jumps to the N-th instruction.
    fn listing(lines: &[&str]) -> Listing {
        let code = lines.iter().enumerate().map(|(i, line)| {
            let (mnemonic, to) = line.split_once(' ').unwrap_or((line, ""));
            let operands =
                to.parse().map_or(to.to_owned(), |to: i64| (10 * (to - i as i64)).to_string());
            Instruction { address: 10 * i as u64, mnemonic: mnemonic.to_owned(), operands }
        });
        Listing {
            kernel: "k".into(),
            instructions: 0,
            half_registers: 0,
            threads: 0,
            spills: (0, 0),
            code: code.collect(),
        }
    }

    #[test]
    fn the_hot_loop_is_an_innermost_one() {
        // The outer loop has more instructions of its own than the inner one.
        let nested = [
            "mov",
            "iadd",
            "iadd",
            "iadd",
            "iadd",
            "ffma",
            "ffma",
            "jmp_any 5",
            "iadd",
            "jmp_any 1",
            "stop",
        ];
        let parts = parts(&listing(&nested)).unwrap();
        assert_eq!((parts.turn.instructions, parts.turn.float, parts.last_turn), (3, 2, None));
        assert_eq!((parts.outside.instructions, parts.straight.instructions), (8, 2));
        assert_eq!(parts.loops.iter().map(|own| own.instructions).collect::<Vec<_>>(), [6, 3]);
    }

    #[test]
    fn of_two_loops_the_dearer_is_hot() {
        let two = ["iadd", "iadd", "iadd", "jmp_any 0", "shr", "shr", "jmp_any 4", "stop"];
        let parts = parts(&listing(&two)).unwrap();
        assert_eq!((parts.turn.slow, parts.loops.len()), (8, 2));
    }

    #[test]
    fn the_multiplying_loop_is_hot() {
        let two = ["ffma", "ffma", "jmp_any 0", "shr", "shr", "fmul", "jmp_any 3", "stop"];
        let parts = parts(&listing(&two)).unwrap();
        assert_eq!((parts.turn.float, parts.turn.slow), (2, 0));
    }

    #[test]
    fn a_guarded_last_iteration_is_separated() {
        let guarded = [
            "ffma",
            "ffma",
            "jmp_any 0",
            "jmp_none 6",
            "ffma",
            "ffma",
            "fmul",
            "jmp_none 9",
            "iadd",
            "stop",
        ];
        let parts = parts(&listing(&guarded)).unwrap();
        assert_eq!(parts.last_turn.map(|cost| cost.float), Some(2));
        assert_eq!(parts.outside.instructions, 5);
        assert_eq!(parts.outside.float, 1);
        assert_eq!((parts.straight, parts.loops), (parts.outside, vec![parts.turn]));
    }

    #[test]
    fn other_guarded_code_counts_as_outside() {
        // Float operations that are no multiplications, as a norm's; another loop that does the
        // same.
        let other = ["ffma", "ffma", "jmp_any 0", "jmp_none 6", "fadd", "fadd", "stop"];
        let parts_of_other = parts(&listing(&other)).unwrap();
        assert_eq!((parts_of_other.last_turn, parts_of_other.straight.float), (None, 2));
        let again =
            ["jmp_none 4", "ffma", "ffma", "jmp_any 1", "ffma", "ffma", "jmp_any 4", "stop"];
        let parts_of_again = parts(&listing(&again)).unwrap();
        assert_eq!((parts_of_again.last_turn, parts_of_again.loops.len()), (None, 2));
        // The way out of a loop, from within.
        let out = ["jmp_none 5", "ffma", "ffma", "ffma", "jmp_any 0", "stop"];
        let parts_of_out = parts(&listing(&out)).unwrap();
        assert_eq!((parts_of_out.last_turn, parts_of_out.turn.multiplications), (None, 3));
    }

    #[test]
    fn without_a_loop_there_is_none() {
        assert_eq!(parts(&listing(&["jmp_none 2", "ffma", "stop"])), None);
    }
}

//! What was learned, as a text that another process reads.

use super::cost::{
    AGAIN, BELIEVED, BYTES, CALLS, Costs, FACTORS, Link, Measured, Work, least, size,
};
use std::{
    fmt::{Display, Write},
    ops::RangeInclusive,
    str::FromStr,
};

/// Names of the sides in a file, in their order.
const SIDES: [&str; 2] = ["cpu", "gpu"];

impl Costs {
    /// What was learned, as a text: a line for the link, and one for each op and size. Where
    /// something is from a file, the calls since then are counted on, so that many short processes
    /// find out as one long process does.
    pub fn text(&self, names: &[&str]) -> Option<String> {
        let Link { call, byte } = self.link?;
        let mut text = format!(
            "link {call} {byte} {}\n",
            if self.doubted == 0 { AGAIN } else { self.doubted }
        );
        for (name, seen) in names.iter().zip(&self.ops) {
            for (at, size) in seen
                .sizes
                .iter()
                .enumerate()
                .filter(|(_, size)| size.sides.iter().any(Option::is_some))
            {
                let known = size.sides.iter().all(|side| side.is_some_and(|side| !side.saved));
                let _ = write!(text, "{name} {} {}", least(at), if known { 0 } else { size.calls });
                for (side, measured) in SIDES.iter().zip(size.sides) {
                    let Some(Measured { factor, times, .. }) = measured else { continue };
                    let _ = write!(text, " {side} {factor} {times}");
                }
                text.push('\n');
            }
        }
        Some(text)
    }

    /// What [`Costs::text`] gave. It is believed until it is measured again, which is soon.
    pub fn parse(text: &str, names: &[&str]) -> Result<Self, String> {
        let (first, lines) = text.split_once('\n').ok_or("is empty")?;
        let &["link", call, byte, doubted] = &words(first)[..] else { return Err(no_line(first)) };
        let link = Link { call: number(call, &CALLS)?, byte: number(byte, &BYTES)? };
        let mut costs =
            Self { doubted: number(doubted, &(1..=AGAIN))?, ..Self::new(Some(link), names.len()) };
        for line in lines.lines() {
            let words = words(line);
            let &[name, operations, calls, ref sides @ ..] = &words[..] else {
                return Err(no_line(line));
            };
            let op = names.iter().position(|known| *known == name).ok_or_else(|| no_line(line))?;
            let operations = number(operations, &(0..=usize::MAX))?;
            let at = size(Work { operations, bytes: 0 });
            if least(at) != operations {
                return Err(no_line(line));
            }
            let seen = &mut costs.ops[op];
            seen.sizes[at].calls = number(calls, &(0..=AGAIN))?;
            for measured in sides.chunks(3) {
                let &[side, factor, times] = measured else { return Err(no_line(line)) };
                let side =
                    SIDES.iter().position(|known| *known == side).ok_or_else(|| no_line(line))?;
                let measured = Measured {
                    factor: number(factor, &FACTORS)?,
                    times: number(times, &(1..=BELIEVED))?,
                    saved: true,
                };
                if seen.sizes[at].sides[side].replace(measured).is_some() {
                    return Err(format!("{name} {operations} {} is there twice", SIDES[side]));
                }
                seen.measured[side] = true;
            }
        }
        Ok(costs)
    }

    /// What a file has, which another process may have written since this one read it, with what
    /// this one has learned: that counts, and of what it did not measure the file does, unless it
    /// is of another machine. Who has not measured the link yet, and read another than the file has
    /// now, knows nothing of this machine.
    pub fn with(mut self, own: &Self) -> Self {
        match own.link {
            Some(link) if own.doubted == 0 => {
                self.compare(link);
                (self.link, self.doubted) = (own.link, 0);
            }
            Some(link) if !self.is_of(link) => return self,
            _ => self.doubted = self.doubted.min(own.doubted),
        }
        for (seen, own) in self.ops.iter_mut().zip(&own.ops) {
            for (size, own) in seen.sizes.iter_mut().zip(&own.sizes) {
                // Who measured something there knows how long ago the slower side was tried.
                let measured = own.sides.iter().flatten().any(|side| !side.saved);
                size.calls = if measured { own.calls } else { size.calls.max(own.calls) };
                for (side, own) in size.sides.iter_mut().zip(own.sides) {
                    *side = own.filter(|own| side.is_none() || !own.saved).or(*side);
                }
            }
        }
        self
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

fn no_line(line: &str) -> String {
    format!("`{}` is no estimate", line.escape_debug())
}

/// A number of a file.
fn number<T: FromStr<Err: Display> + PartialOrd + Display>(
    text: &str,
    range: &RangeInclusive<T>,
) -> Result<T, String> {
    let value = text.parse().map_err(|error| format!("`{}`: {error}", text.escape_debug()))?;
    if range.contains(&value) {
        Ok(value)
    } else {
        Err(format!("{value} is not within {} to {}", range.start(), range.end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auto::cost::{
        Target, Why,
        tests::{LINK, MACHINES, run, sizes, work},
    };

    #[test]
    fn what_is_kept_is_what_is_read() {
        for machine in MACHINES {
            let mut costs = Costs::new(Some(LINK), 1);
            run(&mut costs, 10, machine);
            let text = costs.text(&["add"]).unwrap();
            let mut saved = Costs::parse(&text, &["add"]).unwrap();
            assert_eq!(saved.text(&["add"]).unwrap(), text);
            for n in sizes() {
                let (before, after) = (costs.decide(0, work(n)), saved.decide(0, work(n)));
                assert_eq!((after.cpu, after.gpu), (before.cpu, before.gpu));
                assert!(
                    after.why == Why::Expected
                        && (after.target == before.target || before.why == Why::Trial),
                    "{n}: {before:?}, {after:?}"
                );
            }
        }
    }

    #[test]
    fn a_file_of_everything_is_read() {
        let mut costs = Costs::new(Some(Link::new(f64::MAX, 1.0 / 3.0)), 2);
        for operations in (0..=size(Work { operations: usize::MAX, bytes: 0 })).map(least) {
            for (op, target) in
                [(0, Target::Cpu), (0, Target::Gpu), (1, Target::Cpu), (1, Target::Gpu)]
            {
                let work = Work { operations, bytes: 8 };
                costs.learn(op, work, target, 1.2345e-4 * costs.before(work, target));
            }
        }
        let names = ["softmax", "bitlinear"];
        let text = costs.text(&names).unwrap();
        assert_eq!(Costs::parse(&text, &names).unwrap().text(&names).unwrap(), text);
        // As many bytes for each of nine ops.
        assert!(
            (text.len() / 2 * 9) as u64 <= crate::limits::cache::MOST_COSTS,
            "{} bytes",
            text.len()
        );
    }

    #[test]
    fn what_nobody_learned_is_refused() {
        let sound = "link 60000 0.1 64\nadd 64 0 cpu 1.5 3 gpu 0.5 1\nadd 80 7 gpu 2 2\n";
        let read =
            |text: &str| Costs::parse(text, &["add"]).map(|costs| costs.text(&["add"]).unwrap());
        assert_eq!(read(sound).unwrap(), sound);
        for at in 0..sound.len() {
            // Cut off within a number, it may be one.
            let _ = read(&sound[..at]);
            for byte in *b"\0 \n-x9" {
                let mut bytes = sound.as_bytes().to_vec();
                bytes[at] = byte;
                let _ = read(&String::from_utf8(bytes).unwrap());
            }
        }
        let link = |line: &str| format!("{line}\n");
        let line = |line: &str| format!("link 60000 0.1 64\n{line}\n");
        let wrong = [
            String::new(),
            link(""),
            link("way 60000 0.1 64"),
            link("link 60000 0.1"),
            link("link 0 0.1 64"),
            link("link 2e9 0.1 64"),
            link("link 60000 -1 64"),
            link("link 60000 NaN 64"),
            link("link inf 0.1 64"),
            link("link 60000 0.1 0"),
            link("link 60000 0.1 65"),
            link("link 60000 0.1 64 1"),
            line("sub 64 0 cpu 1 3"),
            line("add 64 0 npu 1 3"),
            line("add 64"),
            line("add 64 0 cpu 1"),
            line("add 64 0 cpu 1 3 3"),
            line("add 65 0 cpu 1 3"),
            line("add 0 0 cpu 1 3"),
            line("add -64 0 cpu 1 3"),
            line("add 99999999999999999999 0 cpu 1 3"),
            line("add 64 -1 cpu 1 3"),
            line("add 64 65 cpu 1 3"),
            line("add 64 0 cpu 0 3"),
            line("add 64 0 cpu -1 3"),
            line("add 64 0 cpu NaN 3"),
            line("add 64 0 cpu inf 3"),
            line("add 64 0 cpu 1e7 3"),
            line("add 64 0 cpu 1 0"),
            line("add 64 0 cpu 1 4"),
            line("add 64 0 cpu 1 3 cpu 1 3"),
            line("add 64 0 cpu 1 3\nadd 64 0 cpu 1 3"),
            line(""),
        ];
        for text in wrong {
            assert!(read(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_two_processes_learn_is_kept_of_both() {
        let names = ["add", "mul"];
        let text = "link 60000 0.1 64\nadd 64 9 cpu 1.5 3 gpu 2 3\n";
        let saved = || Costs::parse(text, &names).unwrap();
        let after = |costs: &Costs, file: &str| {
            Costs::parse(file, &names).unwrap().with(costs).text(&names).unwrap()
        };
        assert_eq!(after(&saved(), text), text, "who learned nothing changes nothing");
        // One learns of one op, the other of another op and of a side of the first.
        let (mut first, mut second) = (saved(), saved());
        first.learn(0, work(64), Target::Cpu, 0.5 * first.before(work(64), Target::Cpu));
        second.learn(1, work(80), Target::Cpu, 3.0 * second.before(work(80), Target::Cpu));
        assert!(!second.doubts());
        let both = "link 60000 0.1 63\nadd 64 9 cpu 0.5 1 gpu 2 3\nmul 80 0 cpu 3 1\n";
        assert_eq!(after(&second, &after(&first, text)), both);
        assert_eq!(after(&first, &after(&second, text)), both);
        // Whatever the first has learned, who measured after it knows better.
        second.learn(0, work(64), Target::Cpu, 0.25 * second.before(work(64), Target::Cpu));
        assert!(after(&second, &after(&first, text)).contains("add 64 9 cpu 0.25 1 gpu 2 3\n"));
        // A trial that one has made is not made again at once.
        let waiting = text.replace("64 9 ", "64 63 ");
        let mut third = Costs::parse(&waiting, &names).unwrap();
        third.ops[0].sizes[size(work(64))].calls = 0;
        third.learn(0, work(64), Target::Cpu, 1.5 * third.before(work(64), Target::Cpu));
        assert!(after(&third, &waiting).contains("add 64 0 cpu 1.5 1 gpu 2 3\n"));
        // Who read what another has found to be of another machine has nothing to add.
        let clean = "link 1000 0.1 64\nmul 80 0 cpu 3 1\n";
        assert_eq!(after(&saved(), clean), clean);
        // The way as it was measured now, and what is of another machine is not taken.
        let mut found = Costs::new(Some(Link::new(70_000.0, 0.1)), 2);
        assert_eq!(after(&found, text), text.replace("60000", "70000"));
        found.link = Some(Link::new(1_000.0, 0.1));
        assert_eq!(after(&found, text), "link 1000 0.1 64\n");
    }
}

//! Reads Mesa's output under `AGX_MESA_DEBUG=shaders,shaderdb`: the disassembly of each shader,
//! then a line of statistics.

/// Followed by a name, begins a kernel's part of the log; without a name, ends it.
pub const MARKER: &str = "@@kernel";

/// A line of the disassembly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub address: u64,
    pub mnemonic: String,
    pub operands: String,
}

/// A compiled kernel: its statistics and its code.
#[derive(Clone, Debug)]
pub struct Listing {
    pub kernel: String,
    pub instructions: u64,
    /// Registers, counted in 16-bit halves.
    pub half_registers: u64,
    /// Threads that fit on a core.
    pub threads: u64,
    /// Register spills to memory, and fills from memory.
    pub spills: (u64, u64),
    pub code: Vec<Instruction>,
}

impl Instruction {
    /// Parses `address: hex mnemonic operands`; `None` for any other line.
    fn parse(line: &str) -> Option<Self> {
        let (address, rest) = line.trim_start().split_once(": ")?;
        let mut words = rest.split_whitespace();
        let bytes = words.next()?;
        let hexadecimal = bytes.len() % 2 == 0 && bytes.bytes().all(|b| b.is_ascii_hexdigit());
        let address = u64::from_str_radix(address, 16).ok().filter(|_| hexadecimal)?;
        Some(Self {
            address,
            mnemonic: words.next()?.to_owned(),
            operands: words.collect::<Vec<_>>().join(" "),
        })
    }

    /// The address that a jump leads to.
    pub fn target(&self) -> Option<u64> {
        let offset = self.operands.parse().ok().filter(|_| self.mnemonic.starts_with("jmp"))?;
        Some(self.address.wrapping_add_signed(offset))
    }
}

/// The kernels of a log, in order of first appearance.
///
/// # Errors
/// A message that names what a line of statistics lacks.
pub fn read(log: &str) -> Result<Vec<Listing>, String> {
    let mut found: Vec<Listing> = Vec::new();
    // Between two markers, a kernel's main program comes first, then its preamble, which runs once
    // per dispatch and is ignored.
    let (mut kernel, mut code, mut programs) = ("", Vec::new(), 0);
    for line in log.lines() {
        if let Some(name) = line.strip_prefix(MARKER) {
            (kernel, code, programs) = (name.trim(), Vec::new(), 0);
        } else if kernel.is_empty() {
            // One of the driver's internal shaders.
        } else if let Some((_, statistics)) = line.split_once("CS shader: ") {
            let listing = statistics_of(kernel, statistics, std::mem::take(&mut code))?;
            programs = 0;
            // Drivers compile a kernel more than once, in a general and a specialized form; the
            // specialized one is shorter.
            match found.iter_mut().find(|other| other.kernel == kernel) {
                Some(other) if other.instructions <= listing.instructions => {}
                Some(other) => *other = listing,
                None => found.push(listing),
            }
        } else if let Some(instruction) = Instruction::parse(line) {
            programs += usize::from(instruction.address == 0);
            if programs == 1 {
                code.push(instruction);
            }
        }
    }
    Ok(found)
}

/// Parses `52 instrs, 20 alu, ..., 0:0 spills:fills`.
fn statistics_of(kernel: &str, line: &str, code: Vec<Instruction>) -> Result<Listing, String> {
    let text = |name: &str| {
        let of = |item: &str| {
            item.trim()
                .split_once(' ')
                .filter(|(_, found)| *found == name)
                .map(|(value, _)| value.to_owned())
        };
        line.split(',')
            .find_map(of)
            .ok_or_else(|| format!("{kernel}: the driver's statistics have no `{name}`: {line}"))
    };
    let number = |text: &str| {
        text.parse::<u64>().map_err(|_| format!("{kernel}: `{text}` is not a number: {line}"))
    };
    let spills = text("spills:fills")?;
    let (spilled, filled) = spills
        .split_once(':')
        .ok_or_else(|| format!("{kernel}: `{spills}` is not `spills:fills`"))?;
    if code.is_empty() {
        return Err(format!("{kernel}: statistics without a disassembly"));
    }
    Ok(Listing {
        kernel: kernel.to_owned(),
        instructions: number(&text("instrs")?)?,
        half_registers: number(&text("gprs")?)?,
        threads: number(&text("threads")?)?,
        spills: (number(spilled)?, number(filled)?),
        code,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel with a loop, and the driver's output around it.
    const LOG: &str = "\
   0: 8800                   stop
CS shader: 1 instrs, 0 alu, 9 gprs, 1024 threads, 9:9 spills:fills
@@kernel sum
workgroup_size: 64, 1, 1
   0: 62000000               ldimm    r0l, 0
   6: 522c88421a00           while    $r4, u18, 1, ult
   c: 0519040d20c01200       load     r3_r4_r5_r6, du18, r0, lsl 2, i32, xyzw, a
  14: 3800                   wait     a
  16: 1a8944622400           ffma     r2, r2l, r3h, r2
  1c: 00000000               shr      r7, r2, 8
  20: 00c0e6ffffff           jmp_any  -26
  26: 8800                   stop
   0: 8800                   stop
CS shader: 8 instrs, 2 alu, 2 fscib, 4 ic, 40 code size, 9 gprs, 4 uniforms, 0 scratch, 1024 threads, 1 loops, 2:3 spills:fills, 1 preamble inst
@@kernel
CS shader: 1 instrs, 0 alu, 9 gprs, 1024 threads, 9:9 spills:fills
";

    #[test]
    fn a_log_becomes_listings() {
        let listings = read(LOG).unwrap();
        let [sum] = &listings[..] else { panic!("{listings:?}") };
        assert_eq!(
            (sum.kernel.as_str(), sum.instructions, sum.half_registers, sum.threads),
            ("sum", 8, 9, 1024)
        );
        assert_eq!(sum.spills, (2, 3));
        assert_eq!(sum.code.len(), 8, "the preamble is not the kernel");
        let fma = Instruction {
            address: 0x16,
            mnemonic: "ffma".into(),
            operands: "r2, r2l, r3h, r2".into(),
        };
        assert_eq!(sum.code[4], fma);
        assert_eq!((sum.code[6].target(), sum.code[5].target()), (Some(6), None));
    }

    #[test]
    fn of_two_forms_the_shorter_is_kept() {
        let part = &LOG[LOG.find("@@kernel sum").unwrap()..];
        let shorter = part.replace("8 instrs", "7 instrs");
        for log in [format!("{part}{shorter}"), format!("{shorter}{part}")] {
            let listings = read(&log).unwrap();
            assert_eq!(
                listings.iter().map(|listing| listing.instructions).collect::<Vec<_>>(),
                [7]
            );
        }
    }

    #[test]
    fn what_is_missing_is_an_error() {
        assert!(read(&LOG.replace("2:3 spills:fills, ", "")).unwrap_err().contains("spills:fills"));
        assert!(read(&LOG.replace("1024 threads", "many threads")).unwrap_err().contains("many"));
        assert!(
            read("@@kernel sum\nCS shader: 8 instrs, 9 gprs, 1024 threads, 0:0 spills:fills")
                .unwrap_err()
                .contains("disassembly")
        );
    }
}

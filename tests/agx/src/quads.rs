//! Quad swaps: SPIR-V has an instruction for them, but the LLVM-to-SPIR-V translator cannot emit
//! it. So SIMD-group shuffles with the xor masks 1, 2 and 3, which are equivalent, are replaced by
//! quad swaps in the translated module.

const MAGIC: u32 = 0x0723_0203;
const BOUND: usize = 3;
const HEADER: usize = 5;
const CAPABILITY: u32 = 17;
const CONSTANT: u32 = 43;
const FUNCTION: u32 = 54;
const SHUFFLE_XOR: u32 = 346;
const QUAD_SWAP: u32 = 366;
const CAPABILITY_QUAD: u32 = 68;

/// Replaces such shuffles in a module and leaves everything else.
///
/// # Errors
/// If the bytes are not SPIR-V.
pub fn swap(module: &[u8]) -> Result<Vec<u8>, String> {
    let words: Vec<u32> = module
        .chunks(4)
        .map(|bytes| bytes.try_into().map(u32::from_le_bytes))
        .collect::<Result<_, _>>()
        .map_err(|_| "not words")?;
    if words.len() < HEADER || words[0] != MAGIC {
        return Err("not SPIR-V".to_owned());
    }
    let mut bound = words[BOUND];
    let (mut head, mut constants, mut body) = (Vec::new(), Vec::new(), Vec::new());
    // Result id, type id and value of the 32-bit constants 1, 2 and 3.
    let mut masks: Vec<(u32, u32, u32)> = Vec::new();
    let (mut at, mut swaps) = (HEADER, false);
    while at < words.len() {
        let (length, opcode) = ((words[at] >> 16) as usize, words[at] & 0xffff);
        let instruction = words.get(at..at + length.max(1)).ok_or("an instruction is cut off")?;
        at += instruction.len();
        match *instruction {
            [_, ty, result, value @ 1..=3] if opcode == CONSTANT => masks.push((result, ty, value)),
            [_, ty, result, scope, value, mask] if opcode == SHUFFLE_XOR => {
                if let Some(&(_, of, mask)) = masks.iter().find(|(result, ..)| *result == mask) {
                    // Direction 0 swaps with lane ^ 1, direction 1 with lane ^ 2, direction 2 with
                    // lane ^ 3.
                    constants.extend([4 << 16 | CONSTANT, of, bound, mask - 1]);
                    body.extend([6 << 16 | QUAD_SWAP, ty, result, scope, value, bound]);
                    bound += 1;
                    swaps = true;
                    continue;
                }
            }
            _ => {}
        }
        // Constants come before the first function, capabilities before all else.
        let section = if body.is_empty() && opcode != FUNCTION { &mut head } else { &mut body };
        section.extend_from_slice(instruction);
    }
    let mut result = words[..HEADER].to_vec();
    result[BOUND] = bound;
    if swaps {
        result.extend([2 << 16 | CAPABILITY, CAPABILITY_QUAD]);
    }
    let all = [result, head, constants, body].concat();
    Ok(all.into_iter().flat_map(u32::to_le_bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(shuffle_by: u32) -> Vec<u8> {
        let header = [MAGIC, 0x1_0300, 0, 20, 0];
        let before =
            [2 << 16 | CAPABILITY, 4, 4 << 16 | CONSTANT, 1, 7, 2, 4 << 16 | CONSTANT, 1, 8, 16];
        let body = [
            5 << 16 | FUNCTION,
            1,
            9,
            0,
            3,
            6 << 16 | SHUFFLE_XOR,
            1,
            10,
            11,
            12,
            shuffle_by,
            1 << 16 | 56,
        ];
        [&header[..], &before, &body].concat().into_iter().flat_map(u32::to_le_bytes).collect()
    }

    fn words(bytes: &[u8]) -> Vec<u32> {
        bytes.chunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    #[test]
    fn a_shuffle_by_two_is_a_vertical_swap() {
        let found = words(&swap(&module(7)).unwrap());
        assert_eq!(found[BOUND], 21);
        assert_eq!(found[HEADER..HEADER + 2], [2 << 16 | CAPABILITY, CAPABILITY_QUAD]);
        assert!(found.windows(4).any(|w| w == [4 << 16 | CONSTANT, 1, 20, 1]));
        assert!(found.windows(6).any(|w| w == [6 << 16 | QUAD_SWAP, 1, 10, 11, 12, 20]));
    }

    #[test]
    fn others_stay() {
        assert_eq!(swap(&module(8)).unwrap(), module(8));
    }

    #[test]
    fn what_is_no_module_is_refused() {
        assert!(swap(b"not SPIR-V, but long enough").is_err());
        assert!(swap(&module(8)[..module(8).len() - 8]).is_err());
    }
}

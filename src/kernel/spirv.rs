//! What a SPIR-V module declares, for [`contract`](super::contract): as much of the format as the
//! crate's own binaries have. Numbers are those of the specification (SPIR-V 1.6, chapter 3).

use super::{
    binding::Access,
    declaration::Grid,
    params::Scalar,
    signature::{Signature, Word},
};
use std::collections::{HashMap, HashSet};

enum Type {
    Scalar(Word),
    Vector(u32, u32),
    Array(u32, u32),
    RuntimeArray(u32),
    Struct(Vec<u32>),
    Pointer(u32),
}

#[derive(Default)]
struct Module {
    entry: String,
    workgroup_size: [u32; 3],
    types: HashMap<u32, Type>,
    constants: HashMap<u32, u32>,
    /// By struct and member.
    names: HashMap<(u32, u32), String>,
    read_only: HashSet<u32>,
    /// By variable: binding, descriptor set.
    places: HashMap<u32, [u32; 2]>,
    /// Pointer type, variable, storage class.
    variables: Vec<[u32; 3]>,
}

/// Reads the signature of a module with one entry point.
pub fn read(words: &[u32], entry: &str) -> Result<Signature, String> {
    let module = Module::parse(words).ok_or("no SPIR-V, or cut short")?;
    if module.entry != entry {
        return Err(format!("the entry point is `{}`, not `{entry}`", module.entry));
    }
    let mut signature = Signature {
        workgroup_size: module.workgroup_size,
        params: Vec::new(),
        bindings: Vec::new(),
        grid: Grid::Blocks,
        workgroup_bytes: 0,
    };
    for &[pointer, variable, class] in &module.variables {
        let Some(Type::Pointer(pointee)) = module.types.get(&pointer) else {
            return Err("a variable is no pointer".to_owned());
        };
        match (class, module.types.get(pointee)) {
            // Workgroup memory.
            (4, _) => signature.workgroup_bytes += module.bytes(*pointee)?.next_multiple_of(16),
            // Push constants.
            (9, Some(Type::Struct(members))) => {
                for (i, member) in (0..).zip(members) {
                    let scalar = match module.scalar(*member)? {
                        Word::U32 => Scalar::U32,
                        Word::I32 => Scalar::I32,
                        Word::F32 => Scalar::F32,
                        Word::F16 => {
                            return Err("a param is f16; u32, i32 and f32 can be passed".to_owned());
                        }
                    };
                    signature.params.push((module.name(*pointee, i), scalar));
                }
            }
            // Storage buffers.
            (12, Some(Type::Struct(members))) => {
                let [binding, 0] = module.places.get(&variable).copied().unwrap_or([0, u32::MAX])
                else {
                    return Err("a buffer is not in bind group 0".to_owned());
                };
                let (&[member], name) = (&members[..], module.name(*pointee, 0)) else {
                    return Err("a buffer has more members than its array".to_owned());
                };
                let Some(Type::RuntimeArray(element)) = module.types.get(&member) else {
                    return Err(format!("`{name}` is no array"));
                };
                let access = if module.read_only.contains(pointee) {
                    Access::Read
                } else {
                    Access::ReadWrite
                };
                signature.bindings.push((binding, name, module.scalar(*element)?, access));
            }
            // Input, and variables of the source.
            (1 | 6 | 7, _) => {}
            _ => return Err(format!("nothing can be bound in storage class {class}")),
        }
    }
    signature.bindings.sort_by_key(|binding| binding.0);
    Ok(signature)
}

impl Module {
    fn parse(words: &[u32]) -> Option<Self> {
        let [0x0723_0203, _, _, _, _, instructions @ ..] = words else { return None };
        let (mut module, mut rest) = (Self::default(), instructions);
        while let [first, ..] = rest {
            let (length, op) = ((first >> 16) as usize, first & 0xffff);
            let (instruction, after) = rest.split_at_checked(length)?;
            module.read(op, instruction.get(1..)?);
            rest = after;
        }
        Some(module)
    }

    fn read(&mut self, op: u32, operands: &[u32]) {
        match (op, operands) {
            (6, &[id, member, ref name @ ..]) => _ = self.names.insert((id, member), string(name)),
            (15, [_, _, name @ ..]) => self.entry = string(name),
            (16, &[_, 17, x, y, z]) => self.workgroup_size = [x, y, z],
            (21, &[id, 32, 0]) => _ = self.types.insert(id, Type::Scalar(Word::U32)),
            (21, &[id, 32, 1]) => _ = self.types.insert(id, Type::Scalar(Word::I32)),
            (22, &[id, 32]) => _ = self.types.insert(id, Type::Scalar(Word::F32)),
            (22, &[id, 16]) => _ = self.types.insert(id, Type::Scalar(Word::F16)),
            (23, &[id, element, count]) => _ = self.types.insert(id, Type::Vector(element, count)),
            (28, &[id, element, length]) => _ = self.types.insert(id, Type::Array(element, length)),
            (29, &[id, element]) => _ = self.types.insert(id, Type::RuntimeArray(element)),
            (30, &[id, ref members @ ..]) => {
                _ = self.types.insert(id, Type::Struct(members.to_vec()))
            }
            (32, &[id, _, pointee]) => _ = self.types.insert(id, Type::Pointer(pointee)),
            (43, &[_, id, value]) => _ = self.constants.insert(id, value),
            (59, &[pointer, id, class]) => self.variables.push([pointer, id, class]),
            (71, &[id, 33, binding]) => self.places.entry(id).or_insert([0, u32::MAX])[0] = binding,
            (71, &[id, 34, set]) => self.places.entry(id).or_insert([0, u32::MAX])[1] = set,
            (72, &[id, 0, 24]) => _ = self.read_only.insert(id),
            _ => {}
        }
    }

    fn name(&self, id: u32, member: u32) -> String {
        self.names.get(&(id, member)).cloned().unwrap_or_default()
    }

    /// What a number, or a vector, is made of.
    fn scalar(&self, id: u32) -> Result<Word, String> {
        match self.types.get(&id) {
            Some(Type::Scalar(word)) => Ok(*word),
            Some(Type::Vector(element, _)) => self.scalar(*element),
            _ => Err("scalars and vectors of 16 or 32 bits can be bound".to_owned()),
        }
    }

    fn bytes(&self, id: u32) -> Result<u32, String> {
        Ok(match self.types.get(&id) {
            Some(Type::Scalar(Word::F16)) => 2,
            Some(Type::Scalar(_)) => 4,
            Some(Type::Vector(element, count)) => count * self.bytes(*element)?,
            Some(Type::Array(element, length)) => {
                self.constants.get(length).ok_or("an array has no length")?
                    * self.bytes(*element)?
            }
            _ => return Err("workgroup memory of a type that is not counted".to_owned()),
        })
    }
}

/// Bytes up to a zero, four in a word.
fn string(words: &[u32]) -> String {
    let bytes =
        words.iter().flat_map(|word| word.to_le_bytes()).take_while(|&byte| byte != 0).collect();
    String::from_utf8(bytes).unwrap_or_default()
}

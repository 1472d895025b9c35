//! Checks that the sources of a kernel agree with its declaration, without a GPU: WGSL through
//! naga, MSL by reading the kernel's signature, SPIR-V word by word. A swapped binding or parameter
//! is found on any machine, before a driver sees it.

use super::{
    binding::{Access, Type},
    declaration::{Grid, Kernel, Variant},
    origin::JoinedSource,
    params::Scalar,
    signature::{Signature, Word},
    spirv,
};
use crate::{element::Element, error::Error, language::ShaderLanguage};
use naga::{AddressSpace, ScalarKind, Statement, StorageAccess, TypeInner};
use std::{collections::HashMap, fmt::Display};

/// The function that a source with a flat grid must use, and the one that adds a thread's index to
/// it.
const FLAT: [&str; 2] = ["flat_group", "flat_thread"];

impl Kernel {
    /// Compares each source with the declaration, without a GPU. SPIR-V that was brought at run
    /// time is not read.
    ///
    /// # Errors
    /// [`Error::Shader`], which says what differs.
    pub fn check(&self) -> crate::error::Result<()> {
        self.variants().iter().try_for_each(|variant| {
            check(self, variant).map_err(|message| Error::Shader {
                kernel: self.name,
                language: variant.language,
                message,
            })
        })
    }
}

/// Compares one variant's source with the declaration; the error says what differs. SPIR-V that was
/// brought at run time is not read.
///
/// # Errors
/// What differs, in words.
pub fn check(kernel: &Kernel, variant: &Variant) -> Result<(), String> {
    let joined = kernel.joined(variant);
    let (found, first_slot) = match variant.language {
        ShaderLanguage::Wgsl => (read_wgsl(kernel, &joined)?, 0),
        // wgpu numbers Metal's buffers so: the immediates, if any, then the bindings.
        ShaderLanguage::Msl => {
            (read_msl(kernel, variant, &joined.source)?, u32::from(!kernel.params.is_empty()))
        }
        ShaderLanguage::Spirv if kernel.code().is_some() => return Ok(()),
        ShaderLanguage::Spirv => (read_spirv(kernel, variant)?, 0),
    };
    let element = |ty| match ty {
        Type::U32 => Word::U32,
        Type::I32 => Word::I32,
        Type::F32 => Word::F32,
        Type::F16 => Word::F16,
        Type::Float(alias) => match variant.floats.iter().find(|(name, _)| *name == alias) {
            Some((_, Element::F16)) => Word::F16,
            _ => Word::F32,
        },
        Type::Bits(alias) if variant.floats.contains(&(alias, Element::F16)) => Word::F16,
        Type::Bits(_) => Word::U32,
    };
    let bindings = (first_slot..)
        .zip(kernel.bindings)
        .map(|(slot, b)| (slot, b.name.to_owned(), element(b.ty), b.access));
    let source = kernel.source_for(variant.language);
    if found.workgroup_bytes > source.workgroup_bytes {
        return Err(format!(
            "workgroup memory: the source has {} bytes, the declaration {}",
            found.workgroup_bytes, source.workgroup_bytes
        ));
    }
    same("grid", grid(found.grid), grid(kernel.grid))?;
    same("workgroup size", size(found.workgroup_size), size(source.workgroup_size))?;
    same("params", fields(&found.params), fields(kernel.params))?;
    same("bindings", list(found.bindings.into_iter().map(binding)), list(bindings.map(binding)))
}

/// Bytes of workgroup memory that a variant's source declares.
///
/// # Errors
/// What of the source cannot be read.
pub fn workgroup_bytes(kernel: &Kernel, variant: &Variant) -> Result<u32, String> {
    let joined = kernel.joined(variant);
    match variant.language {
        ShaderLanguage::Wgsl => {
            read_wgsl(kernel, &joined).map(|signature| signature.workgroup_bytes)
        }
        ShaderLanguage::Msl => {
            read_msl(kernel, variant, &joined.source).map(|signature| signature.workgroup_bytes)
        }
        ShaderLanguage::Spirv => {
            read_spirv(kernel, variant).map(|signature| signature.workgroup_bytes)
        }
    }
}

fn read_spirv(kernel: &Kernel, variant: &Variant) -> Result<Signature, String> {
    spirv::read(&kernel.words(variant).ok_or("there is no binary")?, kernel.entry)
}

fn same<T: PartialEq + Display>(what: &str, source: T, declared: T) -> Result<(), String> {
    if source == declared {
        Ok(())
    } else {
        Err(format!("{what}: the source has {source}; the declaration has {declared}"))
    }
}

fn grid(grid: Grid) -> &'static str {
    match grid {
        Grid::Blocks => "one in blocks",
        Grid::Flat => "one that may be folded",
    }
}

fn size(size: [u32; 3]) -> String {
    size.map(|threads| threads.to_string()).join(" × ")
}

fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<_> = items.collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

fn fields<N: Display>(fields: &[(N, Scalar)]) -> String {
    list(fields.iter().map(|(name, scalar)| format!("{name}: {scalar}")))
}

fn binding((slot, name, word, access): (u32, String, Word, Access)) -> String {
    let access = match access {
        Access::Read => "read",
        Access::ReadWrite => "read_write",
    };
    format!("{slot} {name}: {word} ({access})")
}

fn read_wgsl(kernel: &Kernel, joined: &JoinedSource) -> Result<Signature, String> {
    let module =
        naga::front::wgsl::parse_str(&joined.source).map_err(|error| joined.parse_error(&error))?;
    let capabilities = naga::valid::Capabilities::all();
    let mut validator =
        naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities);
    validator.validate(&module).map_err(|error| joined.validation_error(&error))?;
    let entry = module.entry_points.iter().find(|entry| entry.name == kernel.entry);
    let entry = entry.ok_or_else(|| format!("no entry point `{}`", kernel.entry))?;

    let grid = if calls_flat(&module, &entry.function) { Grid::Flat } else { Grid::Blocks };
    let workgroup_size = entry.workgroup_size;
    let mut signature = Signature {
        workgroup_size,
        params: Vec::new(),
        bindings: Vec::new(),
        grid,
        workgroup_bytes: 0,
    };
    for (_, variable) in module.global_variables.iter() {
        let name = variable.name.clone().unwrap_or_default();
        let ty = &module.types[variable.ty].inner;
        match (variable.space, ty) {
            (AddressSpace::Immediate, TypeInner::Struct { members, .. }) => {
                for member in members {
                    let field = member.name.clone().unwrap_or_default();
                    let scalar = match module.types[member.ty].inner {
                        TypeInner::Scalar(naga::Scalar { kind: ScalarKind::Uint, width: 4 }) => {
                            Scalar::U32
                        }
                        TypeInner::Scalar(naga::Scalar { kind: ScalarKind::Sint, width: 4 }) => {
                            Scalar::I32
                        }
                        TypeInner::Scalar(naga::Scalar { kind: ScalarKind::Float, width: 4 }) => {
                            Scalar::F32
                        }
                        _ => {
                            return Err(format!(
                                "param `{field}` has another type than u32, i32 and f32"
                            ));
                        }
                    };
                    signature.params.push((field, scalar));
                }
            }
            (AddressSpace::Immediate, _) => {
                return Err(format!("`{name}`: immediates must be a struct"));
            }
            (AddressSpace::Storage { access }, TypeInner::Array { base, .. }) => {
                let binding = variable.binding.ok_or_else(|| format!("`{name}` has no binding"))?;
                same("bind group", binding.group, 0)?;
                let scalar = match module.types[*base].inner {
                    TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => scalar,
                    TypeInner::Vector { scalar, .. } => scalar,
                    _ => {
                        return Err(format!("`{name}` is no array of scalars or vectors"));
                    }
                };
                let scalar = match (scalar.kind, scalar.width) {
                    (ScalarKind::Uint, 4) => Word::U32,
                    (ScalarKind::Sint, 4) => Word::I32,
                    (ScalarKind::Float, 4) => Word::F32,
                    (ScalarKind::Float, 2) => Word::F16,
                    _ => {
                        return Err(format!(
                            "`{name}` has other elements than u32, i32, f32 and f16"
                        ));
                    }
                };
                let access = if access.contains(StorageAccess::STORE) {
                    Access::ReadWrite
                } else {
                    Access::Read
                };
                signature.bindings.push((binding.binding, name, scalar, access));
            }
            (AddressSpace::WorkGroup, ty) => {
                signature.workgroup_bytes += ty.size(module.to_ctx()).next_multiple_of(16)
            }
            (AddressSpace::Private, _) => {}
            _ => {
                return Err(format!(
                    "`{name}`: storage buffers are arrays, and parameters are immediates"
                ));
            }
        }
    }
    signature.bindings.sort_by_key(|binding| binding.0);
    Ok(signature)
}

/// Returns whether a function calls `flat_group`, directly or not.
fn calls_flat(module: &naga::Module, function: &naga::Function) -> bool {
    fn in_block(module: &naga::Module, block: &naga::Block) -> bool {
        block.iter().any(|statement| match statement {
            Statement::Block(block) => in_block(module, block),
            Statement::If { accept, reject, .. } => {
                in_block(module, accept) || in_block(module, reject)
            }
            Statement::Switch { cases, .. } => {
                cases.iter().any(|case| in_block(module, &case.body))
            }
            Statement::Loop { body, continuing, .. } => {
                in_block(module, body) || in_block(module, continuing)
            }
            Statement::Call { function, .. } => calls_flat(module, &module.functions[*function]),
            _ => false,
        })
    }
    function.name.as_deref() == Some(FLAT[0]) || in_block(module, &function.body)
}

/// Reads the signature of `kernel void NAME(...)` and the `Params` struct; types are looked up, not
/// parsed.
fn read_msl(kernel: &Kernel, variant: &Variant, source: &str) -> Result<Signature, String> {
    let code = with_arguments(strip_comments(source));
    let head = format!("kernel void {}(", kernel.entry);
    let start = code.find(&head).ok_or_else(|| format!("no `{head}...)`"))?;
    let threads = "[[max_total_threads_per_threadgroup(THREADS)]]";
    if !code[..start].trim_end().ends_with(threads) {
        return Err(format!("`{head}` must follow {threads}"));
    }
    let mut bindings = Vec::new();
    let mut has_params = false;
    for argument in
        arguments(&code[start + head.len()..]).ok_or("the parameter list does not end")?
    {
        let Some((declaration, slot)) = argument.split_once("[[buffer(") else {
            if argument.contains("[[") {
                continue;
            }
            return Err(format!("`{argument}` has no attribute"));
        };
        let slot: u32 = slot
            .split(')')
            .next()
            .and_then(|n| n.trim().parse().ok())
            .ok_or("unreadable buffer slot")?;
        let words: Vec<_> = declaration
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|w| !w.is_empty())
            .collect();
        let (Some(&name), true) = (words.last(), words.len() > 1) else {
            return Err(format!("unreadable: `{argument}`"));
        };
        if words[..words.len() - 1].contains(&"Params") {
            same("slot of the params", slot, 0)?;
            same("address space of the params", words[0], "constant")?;
            has_params = true;
            continue;
        }
        same("address space", words[0], "device")?;
        let access = if words.contains(&"const") { Access::Read } else { Access::ReadWrite };
        let scalar = words[1..words.len() - 1]
            .iter()
            .find(|w| **w != "const")
            .ok_or_else(|| format!("`{name}` has no type"))?;
        bindings.push((slot, name.to_owned(), msl_scalar(scalar, variant)?, access));
    }
    bindings.sort_by_key(|binding| binding.0);
    same("takes params", has_params, !kernel.params.is_empty())?;
    let params = if has_params { msl_params(&code)? } else { Vec::new() };
    // The source takes its group size from THREADS, so it cannot disagree.
    let workgroup_size = kernel.source_for(ShaderLanguage::Msl).workgroup_size;
    // The entry point ends the source.
    let flat = FLAT.iter().any(|function| code[start..].contains(&format!("{function}(")));
    let grid = if flat { Grid::Flat } else { Grid::Blocks };
    Ok(Signature {
        workgroup_size,
        params,
        bindings,
        grid,
        workgroup_bytes: threadgroup_bytes(kernel, variant, &code)?,
    })
}

/// The bytes of all `threadgroup TYPE name[A * B];`, whose factors are numbers or names of numbers.
fn threadgroup_bytes(kernel: &Kernel, variant: &Variant, code: &str) -> Result<u32, String> {
    let mut names: HashMap<&str, &str> = HashMap::new();
    names.extend(code.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' ')));
    let numbers: HashMap<_, _> = kernel.source_for(ShaderLanguage::Msl).numbers().collect();
    let value = |factor: &str| -> Result<u32, String> {
        if let Some(&number) = numbers.get(factor) {
            return Ok(number);
        }
        let value = names.get(factor).copied().unwrap_or(factor);
        value
            .trim_end_matches('u')
            .parse()
            .map_err(|_| format!("`{factor}` in the size of a threadgroup array is no number"))
    };
    let mut bytes = 0;
    for statement in code.split([';', '{']).map(str::trim) {
        let Some((ty, rest)) =
            statement.strip_prefix("threadgroup ").and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        let Some((_, length)) = rest.strip_suffix(']').and_then(|rest| rest.split_once('[')) else {
            continue;
        };
        let lanes = ty.chars().last().and_then(|last| last.to_digit(10)).unwrap_or(1);
        let element = if msl_scalar(ty, variant)? == Word::F16 { 2 } else { 4 };
        let length =
            length.split('*').map(|factor| value(factor.trim())).product::<Result<u32, _>>()?;
        bytes += (lanes * element * length).next_multiple_of(16);
    }
    Ok(bytes)
}

fn msl_scalar(word: &str, variant: &Variant) -> Result<Word, String> {
    if let Some((_, element)) = variant
        .floats
        .iter()
        .find(|(alias, _)| word == *alias || word.strip_suffix('4') == Some(alias))
    {
        return Ok(match element {
            Element::F16 => Word::F16,
            Element::U32 => Word::U32,
            _ => Word::F32,
        });
    }
    match word.trim_end_matches(char::is_numeric) {
        "uint" | "atomic_uint" => Ok(Word::U32),
        "int" | "atomic_int" => Ok(Word::I32),
        "float" => Ok(Word::F32),
        "half" => Ok(Word::F16),
        _ => Err(format!("`{word}` is no type that can be bound")),
    }
}

fn msl_params(code: &str) -> Result<Vec<(String, Scalar)>, String> {
    let (_, rest) = code.split_once("struct Params {").ok_or("no `struct Params {`")?;
    let (body, _) = rest.split_once('}').ok_or("`struct Params` does not end")?;
    let mut fields = Vec::new();
    for declaration in body.split(';').map(str::trim).filter(|d| !d.is_empty()) {
        let (ty, names) = declaration
            .split_once(char::is_whitespace)
            .ok_or_else(|| format!("unreadable: `{declaration}`"))?;
        let scalar = match ty {
            "uint" => Scalar::U32,
            "int" => Scalar::I32,
            "float" => Scalar::F32,
            _ => return Err(format!("param of type `{ty}`; uint, int and float can be passed")),
        };
        fields.extend(names.split(',').map(|name| (name.trim().to_owned(), scalar)));
    }
    Ok(fields)
}

/// The comma-separated arguments up to the parenthesis that closes the list.
fn arguments(source: &str) -> Option<Vec<String>> {
    let (mut depth, mut list, mut current) = (0, Vec::new(), String::new());
    for c in source.chars() {
        match c {
            ')' if depth == 0 => {
                list.push(current.trim().to_owned());
                return Some(list);
            }
            ',' if depth == 0 => list.push(std::mem::take(&mut current).trim().to_owned()),
            _ => {
                depth += i32::from(matches!(c, '(' | '<' | '['))
                    - i32::from(matches!(c, ')' | '>' | ']'));
                current.push(c);
            }
        }
    }
    None
}

/// A source whose macros for arguments, of one line, are expanded: a part may bring a binding so.
fn with_arguments(code: String) -> String {
    let defined = code.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    let of_arguments: Vec<_> = defined.filter(|(_, value)| value.contains("[[buffer(")).collect();
    of_arguments.iter().fold(code.clone(), |code, (name, value)| {
        code.replace(&format!("{name},"), &format!("{value},"))
    })
}

fn strip_comments(source: &str) -> String {
    source.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

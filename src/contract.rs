//! Do both shader texts of a kernel agree with its declaration? Checked without a GPU: WGSL through naga, MSL by reading the
//! kernel's signature. A swapped binding or parameter is found on any machine, before a driver sees it.

use crate::{
    Element, Kernel, ShaderLanguage,
    kernel::{Access, Scalar, Type, Variant},
};
use naga::{AddressSpace, ScalarKind, StorageAccess, TypeInner};
use std::fmt::Debug;

/// What a shader text declares, as read from it; a [`Kernel`]'s declaration must be the same.
#[derive(Debug, PartialEq)]
struct Signature {
    workgroup_size: [u32; 3],
    params: Vec<(String, Scalar)>,
    /// Slot, name, type, access, in slot order.
    bindings: Vec<(u32, String, Word, Access)>,
}

/// What a binding's elements are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    U32,
    I32,
    F32,
    F16,
}

/// Compares one variant's text with the declaration; the error says what differs.
pub fn check(kernel: &Kernel, variant: &Variant) -> Result<(), String> {
    let text = kernel.text(variant);
    let found = match variant.language {
        ShaderLanguage::Wgsl => read_wgsl(kernel, &text)?,
        ShaderLanguage::Msl => read_msl(kernel, variant, &text)?,
    };
    let first_slot = match variant.language {
        ShaderLanguage::Wgsl => 0,
        // wgpu numbers Metal's buffers so: the immediates, if any, then the bindings.
        ShaderLanguage::Msl => u32::from(!kernel.params.is_empty()),
    };
    let element = |ty| match ty {
        Type::U32 => Word::U32,
        Type::I32 => Word::I32,
        Type::F32 => Word::F32,
        Type::Float(alias) => match variant.floats.iter().find(|(name, _)| *name == alias) {
            Some((_, Element::F16)) => Word::F16,
            _ => Word::F32,
        },
    };
    let bindings = (first_slot..).zip(kernel.bindings).map(|(slot, b)| (slot, b.name.to_owned(), element(b.ty), b.access));
    same("workgroup size", found.workgroup_size, kernel.source(variant.language).workgroup_size)?;
    same("params", found.params, kernel.params.iter().map(|&(name, scalar)| (name.to_owned(), scalar)).collect())?;
    same("bindings", found.bindings, bindings.collect())
}

fn same<T: PartialEq + Debug>(what: &str, text: T, declared: T) -> Result<(), String> {
    if text == declared { Ok(()) } else { Err(format!("{what}: the text has {text:?}, the declaration {declared:?}")) }
}

fn read_wgsl(kernel: &Kernel, text: &str) -> Result<Signature, String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    let capabilities = naga::valid::Capabilities::all();
    let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities);
    validator.validate(&module).map_err(|e| e.emit_to_string(text))?;
    let entry = module.entry_points.iter().find(|entry| entry.name == kernel.entry);
    let entry = entry.ok_or_else(|| format!("no entry point `{}`", kernel.entry))?;

    let mut signature = Signature { workgroup_size: entry.workgroup_size, params: Vec::new(), bindings: Vec::new() };
    for (_, variable) in module.global_variables.iter() {
        let name = variable.name.clone().unwrap_or_default();
        let ty = &module.types[variable.ty].inner;
        match (variable.space, ty) {
            (AddressSpace::Immediate, TypeInner::Struct { members, .. }) => {
                for member in members {
                    let field = member.name.clone().unwrap_or_default();
                    let scalar = match module.types[member.ty].inner {
                        TypeInner::Scalar(naga::Scalar { kind: ScalarKind::Uint, width: 4 }) => Scalar::U32,
                        TypeInner::Scalar(naga::Scalar { kind: ScalarKind::Sint, width: 4 }) => Scalar::I32,
                        TypeInner::Scalar(naga::Scalar { kind: ScalarKind::Float, width: 4 }) => Scalar::F32,
                        ref other => return Err(format!("param `{field}` is {other:?}; u32, i32 and f32 can be passed")),
                    };
                    signature.params.push((field, scalar));
                }
            }
            (AddressSpace::Immediate, other) => return Err(format!("immediates must be a struct, not {other:?}")),
            (AddressSpace::Storage { access }, TypeInner::Array { base, .. }) => {
                let binding = variable.binding.ok_or_else(|| format!("`{name}` has no binding"))?;
                same("bind group", binding.group, 0)?;
                let scalar = match module.types[*base].inner {
                    TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => scalar,
                    TypeInner::Vector { scalar, .. } => scalar,
                    ref other => return Err(format!("`{name}` is an array of {other:?}; scalars and vectors can be bound")),
                };
                let scalar = match (scalar.kind, scalar.width) {
                    (ScalarKind::Uint, 4) => Word::U32,
                    (ScalarKind::Sint, 4) => Word::I32,
                    (ScalarKind::Float, 4) => Word::F32,
                    (ScalarKind::Float, 2) => Word::F16,
                    other => return Err(format!("`{name}` has elements of {other:?}")),
                };
                let access = if access.contains(StorageAccess::STORE) { Access::ReadWrite } else { Access::Read };
                signature.bindings.push((binding.binding, name, scalar, access));
            }
            (AddressSpace::WorkGroup | AddressSpace::Private, _) => {}
            (space, _) => return Err(format!("`{name}`: nothing can be bound in {space:?} as it is declared")),
        }
    }
    signature.bindings.sort_by_key(|binding| binding.0);
    Ok(signature)
}

/// Reads the signature of `kernel void NAME(...)` and the `Params` struct; types are looked up, not parsed.
fn read_msl(kernel: &Kernel, variant: &Variant, text: &str) -> Result<Signature, String> {
    let code = strip_comments(text);
    let head = format!("kernel void {}(", kernel.entry);
    let start = code.find(&head).ok_or_else(|| format!("no `{head}...)`"))?;
    let threads = "[[max_total_threads_per_threadgroup(THREADS)]]";
    if !code[..start].trim_end().ends_with(threads) {
        return Err(format!("`{head}` must follow {threads}"));
    }
    let mut bindings = Vec::new();
    let mut has_params = false;
    for argument in arguments(&code[start + head.len()..]).ok_or("the parameter list does not end")? {
        let Some((declaration, slot)) = argument.split_once("[[buffer(") else {
            if argument.contains("[[") {
                continue;
            }
            return Err(format!("`{argument}` has no attribute"));
        };
        let slot: u32 = slot.split(')').next().and_then(|n| n.trim().parse().ok()).ok_or("unreadable buffer slot")?;
        let words: Vec<_> = declaration.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).collect();
        let (Some(&name), true) = (words.last(), words.len() > 1) else { return Err(format!("unreadable: `{argument}`")) };
        if words[..words.len() - 1].contains(&"Params") {
            same("slot of the params", slot, 0)?;
            same("address space of the params", words[0], "constant")?;
            has_params = true;
            continue;
        }
        same("address space", words[0], "device")?;
        let access = if words.contains(&"const") { Access::Read } else { Access::ReadWrite };
        let scalar = words[1..words.len() - 1].iter().find(|w| **w != "const").ok_or_else(|| format!("`{name}` has no type"))?;
        bindings.push((slot, name.to_owned(), msl_scalar(scalar, variant)?, access));
    }
    bindings.sort_by_key(|binding| binding.0);
    same("takes params", has_params, !kernel.params.is_empty())?;
    let params = if has_params { msl_params(&code)? } else { Vec::new() };
    // The text takes its group size from THREADS, so it cannot disagree.
    let workgroup_size = kernel.source(ShaderLanguage::Msl).workgroup_size;
    Ok(Signature { workgroup_size, params, bindings })
}

fn msl_scalar(word: &str, variant: &Variant) -> Result<Word, String> {
    if let Some((_, element)) = variant.floats.iter().find(|(alias, _)| word == *alias || word.strip_suffix('4') == Some(alias)) {
        return Ok(if *element == Element::F16 { Word::F16 } else { Word::F32 });
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
        let (ty, names) = declaration.split_once(char::is_whitespace).ok_or_else(|| format!("unreadable: `{declaration}`"))?;
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
fn arguments(text: &str) -> Option<Vec<String>> {
    let (mut depth, mut list, mut current) = (0, Vec::new(), String::new());
    for c in text.chars() {
        match c {
            ')' if depth == 0 => {
                list.push(current.trim().to_owned());
                return Some(list);
            }
            ',' if depth == 0 => list.push(std::mem::take(&mut current).trim().to_owned()),
            _ => {
                depth += i32::from(matches!(c, '(' | '<' | '[')) - i32::from(matches!(c, ')' | '>' | ']'));
                current.push(c);
            }
        }
    }
    None
}

fn strip_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

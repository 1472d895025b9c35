//! Builds the operations of a function. Every constant that is a parameter is an operation `const`
//! of its own, as coremltools writes them.

use crate::proto::{
    Argument, Binding, BlobFile, Block, Bools, Bound, ConstantDimension, DataType, Dimension,
    Floats, Immediate, Ints, Kind, NamedValueType, Numbers, Operation, StateType, Stored, Strings,
    TensorType, TensorValue, Value, ValueType,
};
use std::collections::BTreeMap;

/// The file of weights, as programs name it.
const WEIGHTS: &str = "@model_path/weights/weight.bin";

/// What an operation returns.
#[derive(Clone, Debug)]
pub(crate) struct Var {
    pub name: String,
    pub shape: Vec<usize>,
}

/// What a parameter of an operation is given.
pub(crate) enum Arg<'a> {
    Var(&'a Var),
    Vars(&'a [&'a Var]),
    Int(i32),
    Ints(&'a [i32]),
    Float(f32),
    Bool(bool),
    Text(&'a str),
}

/// A function that is being built.
#[derive(Default)]
pub(crate) struct Builder {
    operations: Vec<Operation>,
}

/// The type of a tensor of this shape; an empty one is a scalar.
pub(crate) fn tensor_type(data_type: DataType, shape: &[usize]) -> ValueType {
    let dimension =
        |&size: &usize| Dimension { constant: Some(ConstantDimension { size: size as u64 }) };
    ValueType {
        kind: Some(Kind::Tensor(TensorType {
            data_type: data_type.into(),
            rank: shape.len() as i64,
            dimensions: shape.iter().map(dimension).collect(),
        })),
    }
}

/// The type of a state of this shape.
pub(crate) fn state_type(data_type: DataType, shape: &[usize]) -> ValueType {
    let wrapped = Some(Box::new(tensor_type(data_type, shape)));
    ValueType { kind: Some(Kind::State(Box::new(StateType { wrapped }))) }
}

/// A constant in the program.
fn immediate(data_type: DataType, shape: &[usize], numbers: Numbers) -> Value {
    let tensor = Some(TensorValue { numbers: Some(numbers) });
    Value {
        r#type: Some(tensor_type(data_type, shape)),
        stored: Some(Stored::Immediate(Immediate { tensor })),
    }
}

/// Floats in the program.
pub(crate) fn floats(shape: &[usize], values: Vec<f32>) -> Value {
    immediate(DataType::Float32, shape, Numbers::Floats(Floats { values }))
}

/// A constant in weight.bin, whose metadata are at `offset`.
pub(crate) fn blob(data_type: DataType, shape: &[usize], offset: u64) -> Value {
    Value {
        r#type: Some(tensor_type(data_type, shape)),
        stored: Some(Stored::Blob(BlobFile { file_name: WEIGHTS.into(), offset })),
    }
}

fn text(text: &str) -> Value {
    immediate(DataType::String, &[], Numbers::Strings(Strings { values: vec![text.into()] }))
}

fn binding(bound: Bound) -> Binding {
    Binding { bound: Some(bound) }
}

impl Builder {
    /// Appends an operation that returns a tensor of this type and shape.
    pub fn op(
        &mut self,
        kind: &str,
        name: &str,
        arguments: &[(&str, Arg<'_>)],
        (data_type, shape): (DataType, &[usize]),
    ) -> Var {
        let inputs = self.arguments(name, arguments);
        let r#type = Some(tensor_type(data_type, shape));
        self.push(kind, name, inputs, Some(NamedValueType { name: name.into(), r#type }));
        Var { name: name.into(), shape: shape.to_vec() }
    }

    /// Appends an operation that returns floats of this shape.
    pub fn floats(
        &mut self,
        kind: &str,
        name: &str,
        arguments: &[(&str, Arg<'_>)],
        shape: &[usize],
    ) -> Var {
        self.op(kind, name, arguments, (DataType::Float32, shape))
    }

    /// Appends an operation that returns nothing.
    pub fn effect(&mut self, kind: &str, name: &str, arguments: &[(&str, Arg<'_>)]) {
        let inputs = self.arguments(name, arguments);
        self.push(kind, name, inputs, None);
    }

    /// Appends a constant.
    pub fn constant(&mut self, name: &str, value: Value, like: (DataType, &[usize])) -> Var {
        let (data_type, shape) = like;
        let output =
            NamedValueType { name: name.into(), r#type: Some(tensor_type(data_type, shape)) };
        self.operations.push(Operation {
            r#type: "const".into(),
            inputs: BTreeMap::new(),
            outputs: vec![output],
            attributes: [("name".to_owned(), text(name)), ("val".to_owned(), value)].into(),
        });
        Var { name: name.into(), shape: shape.to_vec() }
    }

    /// Appends integers of the program, `[values]`.
    pub fn ints(&mut self, name: &str, values: &[i32]) -> Var {
        let numbers = Numbers::Ints(Ints { values: values.to_vec() });
        let like = (DataType::Int32, &[values.len()][..]);
        self.constant(name, immediate(like.0, like.1, numbers), like)
    }

    /// Appends floats of weight.bin.
    pub fn weights(&mut self, name: &str, shape: &[usize], offset: u64) -> Var {
        let value = blob(DataType::Float32, shape, offset);
        self.constant(name, value, (DataType::Float32, shape))
    }

    /// Appends a matrix by its codes and lookup tables, whose values are bound in place.
    pub fn lookup(&mut self, name: &str, shape: &[usize], indices: Value, lut: Value) -> Var {
        let value = |value| Argument { arguments: vec![binding(Bound::Value(value))] };
        let inputs = [("indices".to_owned(), value(indices)), ("lut".to_owned(), value(lut))];
        let r#type = Some(tensor_type(DataType::Float32, shape));
        let output = NamedValueType { name: name.into(), r#type };
        self.push("constexpr_lut_to_dense", name, inputs.into(), Some(output));
        Var { name: name.into(), shape: shape.to_vec() }
    }

    /// Returns the block that computes `outputs`.
    pub fn finish(self, outputs: &[&Var]) -> Block {
        let outputs = outputs.iter().map(|var| var.name.clone()).collect();
        Block { outputs, operations: self.operations }
    }

    fn push(
        &mut self,
        kind: &str,
        name: &str,
        inputs: BTreeMap<String, Argument>,
        output: Option<NamedValueType>,
    ) {
        self.operations.push(Operation {
            r#type: kind.into(),
            inputs,
            outputs: output.into_iter().collect(),
            attributes: [("name".to_owned(), text(name))].into(),
        });
    }

    fn arguments(
        &mut self,
        name: &str,
        arguments: &[(&str, Arg<'_>)],
    ) -> BTreeMap<String, Argument> {
        let mut bound = BTreeMap::new();
        for (parameter, argument) in arguments {
            let names = match argument {
                Arg::Var(var) => vec![var.name.clone()],
                Arg::Vars(vars) => vars.iter().map(|var| var.name.clone()).collect(),
                literal => vec![self.literal(&format!("{name}_{parameter}_0"), literal)],
            };
            let arguments = names.into_iter().map(|name| binding(Bound::Name(name))).collect();
            bound.insert((*parameter).to_owned(), Argument { arguments });
        }
        bound
    }

    /// Appends a constant for a parameter, and returns its name.
    fn literal(&mut self, name: &str, argument: &Arg<'_>) -> String {
        let ints = |values: &[i32]| Numbers::Ints(Ints { values: values.to_vec() });
        let (data_type, shape, numbers) = match *argument {
            Arg::Int(value) => (DataType::Int32, vec![], ints(&[value])),
            Arg::Ints(values) => (DataType::Int32, vec![values.len()], ints(values)),
            Arg::Float(value) => {
                (DataType::Float32, vec![], Numbers::Floats(Floats { values: vec![value] }))
            }
            Arg::Bool(value) => {
                (DataType::Bool, vec![], Numbers::Bools(Bools { values: vec![value] }))
            }
            Arg::Text(value) => {
                let values = vec![value.to_owned()];
                (DataType::String, vec![], Numbers::Strings(Strings { values }))
            }
            Arg::Var(var) => return var.name.clone(),
            Arg::Vars(vars) => return vars.iter().map(|var| var.name.as_str()).collect(),
        };
        self.constant(name, immediate(data_type, &shape, numbers), (data_type, &shape)).name
    }
}

//! The messages of Core ML's public model format that an ML Program needs, by their published field
//! numbers: `Model.proto`, `FeatureTypes.proto` and `MIL.proto` of coremltools. Fields that are not
//! written are left out, and readers of the format skip what they do not know.

use prost::{Enumeration, Message, Oneof};
use std::collections::BTreeMap;

/// A model file.
#[derive(Clone, PartialEq, Message)]
pub struct Model {
    #[prost(int32, tag = "1")]
    pub specification_version: i32,
    #[prost(message, optional, tag = "2")]
    pub description: Option<ModelDescription>,
    #[prost(message, optional, tag = "502")]
    pub ml_program: Option<Program>,
}

/// Inputs and outputs of a model. Those of a model with several functions are in `functions`.
#[derive(Clone, PartialEq, Message)]
pub struct ModelDescription {
    #[prost(message, repeated, tag = "20")]
    pub functions: Vec<FunctionDescription>,
    #[prost(string, tag = "21")]
    pub default_function_name: String,
    #[prost(message, optional, tag = "100")]
    pub metadata: Option<Metadata>,
}

/// Inputs, outputs and states of a function.
#[derive(Clone, PartialEq, Message)]
pub struct FunctionDescription {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub input: Vec<FeatureDescription>,
    #[prost(message, repeated, tag = "3")]
    pub output: Vec<FeatureDescription>,
    #[prost(message, repeated, tag = "6")]
    pub state: Vec<FeatureDescription>,
}

/// An input, output or state.
#[derive(Clone, PartialEq, Message)]
pub struct FeatureDescription {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub short_description: String,
    #[prost(message, optional, tag = "3")]
    pub r#type: Option<FeatureType>,
}

/// What a person reads about a model.
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    #[prost(string, tag = "1")]
    pub short_description: String,
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(btree_map = "string, string", tag = "100")]
    pub user_defined: BTreeMap<String, String>,
}

/// The type of an input, output or state.
#[derive(Clone, PartialEq, Message)]
pub struct FeatureType {
    #[prost(oneof = "Feature", tags = "5, 8")]
    pub feature: Option<Feature>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Feature {
    #[prost(message, tag = "5")]
    MultiArray(ArrayFeature),
    #[prost(message, tag = "8")]
    State(StateFeature),
}

/// An array of fixed shape.
#[derive(Clone, PartialEq, Message)]
pub struct ArrayFeature {
    #[prost(int64, repeated, tag = "1")]
    pub shape: Vec<i64>,
    #[prost(enumeration = "ArrayType", tag = "2")]
    pub data_type: i32,
}

/// A state: an array that stays between predictions.
#[derive(Clone, PartialEq, Message)]
pub struct StateFeature {
    #[prost(message, optional, tag = "1")]
    pub array: Option<ArrayFeature>,
}

/// Types of the numbers of inputs and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum ArrayType {
    Invalid = 0,
    Float16 = 65_552,
    Float32 = 65_568,
    Int32 = 131_104,
}

/// A program: functions by their names.
#[derive(Clone, PartialEq, Message)]
pub struct Program {
    #[prost(int64, tag = "1")]
    pub version: i64,
    #[prost(btree_map = "string, message", tag = "2")]
    pub functions: BTreeMap<String, Function>,
}

/// A function, with a block for the one set of operations that it is written for.
#[derive(Clone, PartialEq, Message)]
pub struct Function {
    #[prost(message, repeated, tag = "1")]
    pub inputs: Vec<NamedValueType>,
    #[prost(string, tag = "2")]
    pub opset: String,
    #[prost(btree_map = "string, message", tag = "3")]
    pub block_specializations: BTreeMap<String, Block>,
}

/// Operations in order.
#[derive(Clone, PartialEq, Message)]
pub struct Block {
    #[prost(string, repeated, tag = "2")]
    pub outputs: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    pub operations: Vec<Operation>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Operation {
    #[prost(string, tag = "1")]
    pub r#type: String,
    #[prost(btree_map = "string, message", tag = "2")]
    pub inputs: BTreeMap<String, Argument>,
    #[prost(message, repeated, tag = "3")]
    pub outputs: Vec<NamedValueType>,
    #[prost(btree_map = "string, message", tag = "5")]
    pub attributes: BTreeMap<String, Value>,
}

/// What a parameter of an operation is bound to: one value, or the list that `concat` takes.
#[derive(Clone, PartialEq, Message)]
pub struct Argument {
    #[prost(message, repeated, tag = "1")]
    pub arguments: Vec<Binding>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Binding {
    #[prost(oneof = "Bound", tags = "1, 2")]
    pub bound: Option<Bound>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Bound {
    #[prost(string, tag = "1")]
    Name(String),
    #[prost(message, tag = "2")]
    Value(Value),
}

#[derive(Clone, PartialEq, Message)]
pub struct NamedValueType {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<ValueType>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ValueType {
    #[prost(oneof = "Kind", tags = "1, 5")]
    pub kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Kind {
    #[prost(message, tag = "1")]
    Tensor(TensorType),
    #[prost(message, tag = "5")]
    State(Box<StateType>),
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorType {
    #[prost(enumeration = "DataType", tag = "1")]
    pub data_type: i32,
    #[prost(int64, tag = "2")]
    pub rank: i64,
    #[prost(message, repeated, tag = "3")]
    pub dimensions: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
pub struct StateType {
    #[prost(message, optional, boxed, tag = "1")]
    pub wrapped: Option<Box<ValueType>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    #[prost(message, optional, tag = "1")]
    pub constant: Option<ConstantDimension>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ConstantDimension {
    #[prost(uint64, tag = "1")]
    pub size: u64,
}

/// Types of a program's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum DataType {
    Unused = 0,
    Bool = 1,
    String = 2,
    Float16 = 10,
    Float32 = 11,
    Int32 = 23,
    Uint2 = 36,
}

/// A constant: numbers in the program itself, or a place in weight.bin.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<ValueType>,
    #[prost(oneof = "Stored", tags = "3, 5")]
    pub stored: Option<Stored>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Stored {
    #[prost(message, tag = "3")]
    Immediate(Immediate),
    #[prost(message, tag = "5")]
    Blob(BlobFile),
}

#[derive(Clone, PartialEq, Message)]
pub struct Immediate {
    #[prost(message, optional, tag = "1")]
    pub tensor: Option<TensorValue>,
}

/// A place in a file: of a blob's metadata, not of its data.
#[derive(Clone, PartialEq, Message)]
pub struct BlobFile {
    #[prost(string, tag = "1")]
    pub file_name: String,
    #[prost(uint64, tag = "2")]
    pub offset: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorValue {
    #[prost(oneof = "Numbers", tags = "1, 2, 3, 4")]
    pub numbers: Option<Numbers>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Numbers {
    #[prost(message, tag = "1")]
    Floats(Floats),
    #[prost(message, tag = "2")]
    Ints(Ints),
    #[prost(message, tag = "3")]
    Bools(Bools),
    #[prost(message, tag = "4")]
    Strings(Strings),
}

#[derive(Clone, PartialEq, Message)]
pub struct Floats {
    #[prost(float, repeated, tag = "1")]
    pub values: Vec<f32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Ints {
    #[prost(int32, repeated, tag = "1")]
    pub values: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Bools {
    #[prost(bool, repeated, tag = "1")]
    pub values: Vec<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Strings {
    #[prost(string, repeated, tag = "1")]
    pub values: Vec<String>,
}

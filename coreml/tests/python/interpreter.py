"""Reads a Core ML package by itself and computes its functions with NumPy: only the operations that the exporter writes, as coremltools documents
them. Floats are f32, but for products, whose sums are f64 and rounded once."""

import struct

import numpy as np
from coremltools.proto import MIL_pb2, Model_pb2

FOLDER = "Data/com.apple.CoreML"
TYPES = {
    MIL_pb2.FLOAT32: np.float32,
    MIL_pb2.FLOAT16: np.float16,
    MIL_pb2.INT32: np.int32,
    MIL_pb2.BOOL: np.bool_,
}
# Types of blobs by their number in weight.bin, and bits of an element.
BLOBS = {2: (MIL_pb2.FLOAT32, 32), 10: (MIL_pb2.UINT2, 2)}


class Package:
    """A package's program and weights."""

    def __init__(self, path):
        self.model = Model_pb2.Model()
        self.model.ParseFromString((path / FOLDER / "model.mlmodel").read_bytes())
        self.weights = (path / FOLDER / "weights/weight.bin").read_bytes()
        count, version = struct.unpack_from("<II", self.weights)
        assert version == 2 and len(self.weights) % 64 == 0, (count, version)
        self.cache = {}
        self.blobs = set()
        for function in self.model.mlProgram.functions.values():
            self.block(function)
        assert count == len(self.blobs), f"{count} blobs, of which {len(self.blobs)} are named"

    def block(self, function):
        block = function.block_specializations[function.opset]
        for operation in block.operations:
            values = [operation.attributes["val"]] if operation.type == "const" else []
            for argument in operation.inputs.values():
                values += [bound.value for bound in argument.arguments if bound.WhichOneof("binding") == "value"]
            for value in values:
                if value.WhichOneof("value") == "blobFileValue":
                    self.value(value)
        return block

    def blob(self, value):
        """The numbers of a blob, flat, whose metadata are checked."""
        offset, tensor = value.blobFileValue.offset, value.type.tensorType
        assert value.blobFileValue.fileName == "@model_path/weights/weight.bin"
        assert offset % 64 == 0, f"a blob at {offset}"
        sentinel, kind, size, start, unused = struct.unpack_from("<IIQQQ", self.weights, offset)
        assert sentinel == 0xDEADBEEF, f"no blob at {offset}"
        assert start % 64 == 0 and start == offset + 64 and start + size <= len(self.weights)
        data_type, bits = BLOBS[kind]
        assert data_type == tensor.dataType, f"a blob of {kind} is read as {tensor.dataType}"
        count = int(np.prod(shape_of(tensor)))
        assert (size * 8 - unused) == count * bits and unused < 8, f"{size} bytes for {count} numbers"
        self.blobs.add(offset)
        raw = np.frombuffer(self.weights, np.uint8, size, start)
        if bits == 2:
            return ((raw[:, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3).reshape(-1)[:count]
        return raw.view(np.float32)

    def value(self, value):
        """A constant as an array, a scalar or a text."""
        shape = shape_of(value.type.tensorType)
        if value.WhichOneof("value") == "blobFileValue":
            key = (value.blobFileValue.offset, tuple(shape))
            if key not in self.cache:
                self.cache[key] = self.blob(value).reshape(shape)
            return self.cache[key]
        tensor = value.immediateValue.tensor
        numbers = list(getattr(tensor, tensor.WhichOneof("value")).values)
        if value.type.tensorType.dataType == MIL_pb2.STRING:
            return numbers[0]
        return np.array(numbers, TYPES[value.type.tensorType.dataType]).reshape(shape)


def shape_of(tensor):
    return [dimension.constant.size for dimension in tensor.dimensions]


class Run:
    """States, and functions that read and write them."""

    def __init__(self, package, fault=lambda operation, result: result):
        self.package, self.fault, self.tables = package, fault, {}
        self.states = {}
        for function in package.model.mlProgram.functions.values():
            for port in function.inputs:
                if port.type.WhichOneof("type") == "stateType":
                    tensor = port.type.stateType.wrappedType.tensorType
                    self.states[port.name] = np.zeros(shape_of(tensor), TYPES[tensor.dataType])

    def call(self, name, **inputs):
        """Computes a function; returns its outputs."""
        function = self.package.model.mlProgram.functions[name]
        scope = dict(self.states.keys() and {state: state for state in self.states})
        for port in function.inputs:
            if port.type.WhichOneof("type") == "tensorType":
                tensor, given = port.type.tensorType, inputs.pop(port.name)
                assert list(given.shape) == shape_of(tensor) and given.dtype == TYPES[tensor.dataType], port.name
                scope[port.name] = given
        assert not inputs, inputs.keys()
        block = function.block_specializations[function.opset]
        with np.errstate(over="ignore"):
            for operation in block.operations:
                self.operation(operation, scope)
        return {name: scope[name] for name in block.outputs}

    def operation(self, operation, scope):
        if operation.type == "const":
            result = self.package.value(operation.attributes["val"])
        else:
            arguments = {name: self.argument(bound, scope) for name, bound in operation.inputs.items()}
            result = getattr(self, operation.type)(**arguments)
        if not operation.outputs:
            return
        (output,) = operation.outputs
        result = self.fault(operation, result)
        tensor = output.type.tensorType
        if tensor.dataType != MIL_pb2.STRING:
            assert list(np.shape(result)) == shape_of(tensor), f"{output.name}: {np.shape(result)}, not {shape_of(tensor)}"
            assert result.dtype == TYPES[tensor.dataType], f"{output.name}: {result.dtype}"
        scope[output.name] = result

    def argument(self, argument, scope):
        bound = [scope[b.name] if b.WhichOneof("binding") == "name" else self.package.value(b.value) for b in argument.arguments]
        return bound[0] if len(bound) == 1 else bound

    # The operations, by their names in MIL.

    def constexpr_lut_to_dense(self, indices, lut):
        key = (id(indices), lut.tobytes())
        if key not in self.tables:
            # A table for each block of rows and columns.
            rows, columns = (size // of for size, of in zip(indices.shape, lut.shape[:2]))
            row, column = np.ogrid[: indices.shape[0], : indices.shape[1]]
            self.tables[key] = lut[row // rows, column // columns, indices, 0]
        return self.tables[key]

    def gather(self, x, indices, axis, batch_dims, validate_indices):
        assert batch_dims == 0
        assert indices.min() >= 0 and indices.max() < x.shape[axis], "an index is out of range"
        return np.take(x, indices, int(axis))

    def reshape(self, x, shape):
        return x.reshape(shape)

    def transpose(self, x, perm):
        return x.transpose(perm)

    def slice_by_index(self, x, begin, end):
        return x[tuple(slice(b, e) for b, e in zip(begin, end))]

    def slice_update(self, x, update, begin, end):
        place = tuple(slice(b, e) for b, e in zip(begin, end))
        assert all(0 <= b < e <= size for b, e, size in zip(begin, end, x.shape)), (begin, end)
        result = x.copy()
        result[place] = update
        return result

    def concat(self, values, axis, interleave):
        assert not interleave
        return np.concatenate(values, int(axis))

    def read_state(self, input):
        return self.states[input]

    def write_state(self, input, data):
        assert data.shape == self.states[input].shape and data.dtype == self.states[input].dtype
        self.states[input] = data

    def cast(self, x, dtype):
        return x.astype({"fp16": np.float16, "fp32": np.float32}[dtype])

    def linear(self, x, weight, bias):
        return (x.astype(np.float64) @ weight.T.astype(np.float64)).astype(np.float32) + bias

    def matmul(self, x, y, transpose_x, transpose_y):
        assert not transpose_x
        y = y.swapaxes(-1, -2) if transpose_y else y
        return (x.astype(np.float64) @ y.astype(np.float64)).astype(np.float32)

    def softmax(self, x, axis):
        e = np.exp(x.astype(np.float64) - x.max(int(axis), keepdims=True))
        return (e / e.sum(int(axis), keepdims=True)).astype(np.float32)

    def reduce_mean(self, x, axes, keep_dims):
        return x.astype(np.float64).mean(tuple(axes), keepdims=bool(keep_dims)).astype(np.float32)

    def reduce_max(self, x, axes, keep_dims):
        return x.max(tuple(axes), keepdims=bool(keep_dims))

    def rsqrt(self, x, epsilon):
        return np.float32(1) / np.sqrt(x + epsilon)

    def silu(self, x):
        return (x / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32)

    def relu(self, x):
        return np.maximum(x, np.float32(0))

    def abs(self, x):
        return np.abs(x)

    def round(self, x):
        return np.rint(x)

    def clip(self, x, alpha, beta):
        return np.clip(x, alpha, beta)

    def add(self, x, y):
        return x + y

    def sub(self, x, y):
        return x - y

    def mul(self, x, y):
        return x * y

    def real_div(self, x, y):
        return x / y

    def maximum(self, x, y):
        return np.maximum(x, y)

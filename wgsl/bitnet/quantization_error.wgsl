// How far numbers are from what they were quantized to: a number for the sums of quantization_error_sums.
@group(0) @binding(0) var<storage, read> w: array<X>;
@group(0) @binding(1) var<storage, read> quantized: array<Q>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

fn element(at: u32, index: u32, output: u32) -> Acc {
    let v = f32(w[at]);
    let q = f32(quantized[at]);
    let error = v - q;
    return Acc(error * error, bitcast<u32>(error) & 0x7fffffffu, v * q, v * v, q * q, u32(q == 0.0));
}

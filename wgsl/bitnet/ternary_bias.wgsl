@group(0) @binding(4) var<storage, read> bias: array<X>;

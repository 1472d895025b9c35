@group(0) @binding(3) var<storage, read> bias: array<X>;

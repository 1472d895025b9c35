// The mask of a softmax, broadcast to x [n0, n1, n2, columns]: m0 to m3 are its strides, 0 where it has one for all.
@group(0) @binding(2) var<storage, read> mask: array<u32>;

// Is column i of the row that begins at `first` hidden?
fn hidden(first: u32, i: u32) -> bool {
    let row = first / params.columns;
    let outer = row / params.n2;
    return mask[outer / params.n1 * params.m0 + outer % params.n1 * params.m1 + row % params.n2 * params.m2 + i * params.m3] == 0u;
}

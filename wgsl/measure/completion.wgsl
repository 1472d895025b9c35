// The end of a compute pass: log[place] = word in the first pass of a submission, log[place] += 1 in each that follows. One thread.
struct Params { place: u32, word: u32, first: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> log: array<u32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn completion() {
    log[params.place] = select(log[params.place] + 1u, params.word, params.first != 0u);
}

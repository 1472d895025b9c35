// A row by one thread, in the order of shared/row_shared: for software adapters, at whose barriers the registers of all threads are saved.
struct Share { row: u32, lane: u32, step: u32 }

fn share(group: Group, ids: Ids, lanes: u32) -> Share { return Share(flat_thread(group, ids), 0u, 1u); }

// Lane by lane, in the order in which they meet in the tree: their bits count from the highest on.
fn over_row(first: u32, begin: u32, end: u32, lanes: u32, ids: Ids) -> Acc {
    // What waits for its other half, of 2^i lanes.
    var halves: array<Acc, 9>;
    var whole = identity();
    for (var k = 0u; k < lanes; k += 1u) {
        whole = identity();
        for (var i = begin + (reverseBits(k) >> (countLeadingZeros(lanes) + 1u)); i < end; i += lanes) { whole = combine(whole, number(first, i)); }
        let merges = countTrailingZeros(~k);
        for (var i = 0u; i < merges; i += 1u) { whole = combine(halves[i], whole); }
        halves[merges] = whole;
    }
    return whole;
}

// A row by one thread, in the order of shared/row_shared: for software adapters, at whose barriers the registers of all threads are saved.
struct Share { row: u32, lane: u32, step: u32 }

fn share(group: Group, ids: Ids, lanes: u32) -> Share { return Share(flat_thread(group, ids), 0u, 1u); }

// What four neighboring lanes have.
struct Four { a: Acc, b: Acc, c: Acc, d: Acc }

fn together(v: Four, w: Four) -> Four { return Four(combine(v.a, w.a), combine(v.b, w.b), combine(v.c, w.c), combine(v.d, w.d)); }

// Four lanes after four, in the order in which they meet in the tree: the bits of their number count from the highest on. Of fewer lanes those that are
// there.
fn over_row(first: u32, begin: u32, end: u32, lanes: u32, ids: Ids) -> Acc {
    let fours = max(lanes / 4u, 1u);
    // Up to here all four have a number.
    let full = select(begin, end - (end - begin) % 4u, lanes >= 4u);
    // What waits for its other half, of 2^i times four lanes.
    var halves: array<Four, 7>;
    let none = Four(identity(), identity(), identity(), identity());
    var all = none;
    for (var k = 0u; k < fours; k += 1u) {
        all = none;
        var i = begin + 4u * (reverseBits(k) >> (countLeadingZeros(fours) + 1u));
        for (; i < full; i += lanes) {
            all = together(all, Four(number(first, i), number(first, i + 1u), number(first, i + 2u), number(first, i + 3u)));
        }
        for (; i < end; i += lanes) {
            all.a = combine(all.a, number(first, i));
            if lanes > 1u && i + 1u < end { all.b = combine(all.b, number(first, i + 1u)); }
            if lanes > 2u && i + 2u < end { all.c = combine(all.c, number(first, i + 2u)); }
        }
        let merges = countTrailingZeros(~k);
        for (var i = 0u; i < merges; i += 1u) { all = together(halves[i], all); }
        halves[merges] = all;
    }
    return combine(combine(all.a, all.c), combine(all.b, all.d));
}

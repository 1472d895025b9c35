// A row by `lanes` threads that share it: each combines every `lanes`-th number, then shared/lanes combines what they have. shared/row_alone gives the same
// by the same names.
// A kernel that includes this defines, besides what shared/lanes needs, `identity() -> Acc` and `number(first, i) -> Acc`, column i of the row that begins
// at `first`.

// A thread's part of a row: columns lane, lane + step, ..
struct Share { row: u32, lane: u32, step: u32 }

fn share(group: Group, ids: Ids, lanes: u32) -> Share {
    return Share(flat_group(group) * (THREADS / lanes) + ids.local / lanes, ids.local % lanes, lanes);
}

// All numbers of columns `begin` to `end`. All threads must call this together; all get the result.
fn over_row(first: u32, begin: u32, end: u32, lanes: u32, ids: Ids) -> Acc {
    var acc = identity();
    var i = begin + ids.local % lanes;
    // Four whose loads wait together.
    for (; i + 3u * lanes < end; i += 4u * lanes) {
        let a = number(first, i);
        let b = number(first, i + lanes);
        let c = number(first, i + 2u * lanes);
        let d = number(first, i + 3u * lanes);
        acc = combine(combine(combine(combine(acc, a), b), c), d);
    }
    for (; i < end; i += lanes) { acc = combine(acc, number(first, i)); }
    return over_lanes(acc, lanes, 1u, ids.local);
}

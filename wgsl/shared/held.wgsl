// Rows that `lanes` threads share: a thread has the numbers of columns lane, lane + lanes, .., and holds HELD of them at a time. Their loads wait together,
// and a row of no more than HELD·lanes columns is read once. Longer rows are held in turns, by every pass again.
// A kernel that includes this defines `params`, with `columns` and `lanes`, and
//     Held, number(first, i)     what is held of column i of the row that begins at `first`
var<private> held: array<Held, HELD>;

// Columns of a turn.
fn turn() -> u32 { return HELD * params.lanes; }

// Holds a thread's numbers from column `start` on, those before `end`.
fn hold(first: u32, start: u32, end: u32) {
    for (var h = 0u; h < HELD; h += 1u) {
        let i = start + h * params.lanes;
        if i >= end { break; }
        held[h] = number(first, i);
    }
}

// The same in a later pass.
fn hold_again(first: u32, start: u32, end: u32) {
    if params.columns > turn() { hold(first, start, end); }
}

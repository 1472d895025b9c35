// Sums of ROWS rows over the lanes of a team, each of which has a part of every row.

// Two lanes whose numbers differ in the bit `mask` share 2·`pairs` rows: one keeps the even rows, the other the odd ones, and each gives the other
// the rest.
fn share(pairs: u32, mask: u32, acc: ptr<function, array<Acc, ROWS>>, ids: Ids) {
    let odd = (team_lane(ids) & mask) != 0u;
    for (var r = 0u; r < pairs; r += 1u) {
        let kept = select((*acc)[2u * r], (*acc)[2u * r + 1u], odd);
        let given = select((*acc)[2u * r + 1u], (*acc)[2u * r], odd);
        (*acc)[r] = kept + exchange(given, mask, ids);
    }
}

// The sum of row `lane % ROWS` over a team of at least eight lanes. Lanes share their rows until each is left with one; then the lanes with the
// same row add up. Sums are exact in any order. Masks are constants, for which GPUs have instructions.
fn row_sum(acc: ptr<function, array<Acc, ROWS>>, ids: Ids) -> Acc {
    if ROWS == 1u { return team_sum((*acc)[0], ids); }
    share(ROWS / 2u, 1u, acc, ids);
    if ROWS > 2u { share(ROWS / 4u, 2u, acc, ids); }
    if ROWS > 4u { share(ROWS / 8u, 4u, acc, ids); }
    let lanes = team_lanes(ids);
    var sum = (*acc)[0];
    if ROWS <= 2u { sum += exchange(sum, 2u, ids); }
    if ROWS <= 4u { sum += exchange(sum, 4u, ids); }
    if lanes > 8u { sum += exchange(sum, 8u, ids); }
    if lanes > 16u { sum += exchange(sum, 16u, ids); }
    if lanes > 32u { sum += exchange(sum, 32u, ids); }
    if lanes > 64u { sum += exchange(sum, 64u, ids); }
    return sum;
}

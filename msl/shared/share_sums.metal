// Two lanes whose numbers differ in the bit `mask` share the 2·pairs sums of `acc`: one keeps the even ones, the other the odd ones, and each gives the other
// the rest. `exchange` is the function that moves a number between them. By masks 1, 2, 4, .. a lane is left with sum `lane` of as many as lanes took part.
#define SHARE(pairs, mask, exchange) \
    for (uint s = 0; s < pairs; ++s) { \
        const Acc even = acc[2u * s]; \
        const Acc odd = acc[2u * s + 1u]; \
        const bool keeps_odd = (lane & mask) != 0u; \
        acc[s] = (keeps_odd ? odd : even) + exchange(keeps_odd ? even : odd, ushort(mask)); \
    }

// Causal attention of many new tokens on tensor cores, after rope.wgsl, from keys and values in f16: y as in attention_few.wgsl, but for its last bits,
// since queries and weights are multiplied as f16, and products added in the hardware's order. A row is batch-invariant: what it computes depends on its
// own scores alone, SPAN positions at a time, from a multiple of SPAN on.
// A workgroup goes through all positions that its TILE_X rows see; a subgroup makes SIDE rows. Keys and values are in workgroup memory in two stages, and
// the next scores are made beside these weights. A row's `top` is no maximum: it grows where a score exceeds it by more than SLACK.
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_Z) in;
layout(push_constant) uniform Params {
    uint run; uint sequences; uint heads; uint kv_heads; uint head_dim; uint capacity; uint longest; uint rotate; uint add; uint window; float scale;
} params;
layout(std430, set = 0, binding = 0) readonly buffer Runs { uvec2 runs[]; };
layout(std430, set = 0, binding = 1) readonly buffer Qkv { float qkv[]; };
layout(std430, set = 0, binding = 2) readonly buffer Keys { f16vec4 keys[]; };
layout(std430, set = 0, binding = 3) readonly buffer Values { f16vec4 values[]; };

const float LOWEST = -1e30;
// 2^SLACK is far below the largest f16.
const float SLACK = 8.0;
// Quads of a head; vectors of eight f16 of a line of keys or values, and from one line to the next, so that eight lines meet no bank twice.
const int QUADS = HEAD / 4;
const int VECTORS = HEAD / 8;
const int PITCH = VECTORS + 1;
const int STAGED = SPAN * PITCH;
const int LOADS = SPAN * VECTORS / THREADS;
const int ALONG = HEAD / SIDE;
const int ACROSS = SPAN / SIDE;
// Keys of two spans, then values of two.
shared uvec4 staged[4 * STAGED];

#define MATRIX(type, use) coopmat<type, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUse##use>
// Which elements of a matrix a lane has, of an accumulator as of a left operand: of OWN rows EACH number, of which PAIR are neighbors. The device is
// asked whether it is so: src/gpu/setup/probes.rs.
#if SIDE == 16
const int EACH = 4;
const int PAIR = 2;
#define NUMBERS vec2
#define ROW_OF(own) (lane / 4 + 8 * (own))
#define COLUMN_OF(e) (2 * (lane % 4) + (e) % 2 + 8 * ((e) / 2))
#define OVER_ROW(v, op) v = op(v, subgroupShuffleXor(v, 1)); v = op(v, subgroupShuffleXor(v, 2));
#define NUMBERS_OF(m, at) vec2(m[at], m[(at) + 1])
#else
const int EACH = 1;
const int PAIR = 1;
#define NUMBERS float
#define ROW_OF(own) (own)
#define COLUMN_OF(e) lane
#define OVER_ROW(v, op) v = op(v, subgroupShuffleXor(v, 1)); v = op(v, subgroupShuffleXor(v, 2)); v = op(v, subgroupShuffleXor(v, 4));
#define NUMBERS_OF(m, at) m[at]
#endif
layout(std430, set = 0, binding = 4) buffer Output { NUMBERS y[]; };
const int OWN = SIDE * SIDE / LANES / EACH;
float sum_of(float a, float b) { return a + b; }

#define LOAD_KEYS(start) { \
    [[unroll]] for (int i = 0; i < LOADS; i++) { \
        int at = local + i * THREADS; \
        uint position = min(max((start) + at % SPAN, first_seen), visible - 1), quad = (cache * QUADS + 2 * (at / SPAN)) * params.capacity + position; \
        next_keys[i] = uvec4(pack(keys[quad]), pack(keys[quad + params.capacity])); \
    } \
}
#define LOAD_VALUES(start) { \
    [[unroll]] for (int i = 0; i < LOADS; i++) { \
        int at = local + i * THREADS; \
        uint quad = (cache * params.capacity + min(max((start) + at / VECTORS, first_seen), visible - 1)) * QUADS + 2 * (at % VECTORS); \
        next_values[i] = uvec4(pack(values[quad]), pack(values[quad + 1])); \
    } \
}
#define STAGE_KEYS(stage) { \
    [[unroll]] for (int i = 0; i < LOADS; i++) { \
        int at = local + i * THREADS; \
        staged[(stage) * STAGED + at % SPAN * PITCH + at / SPAN] = next_keys[i]; \
    } \
}
#define STAGE_VALUES(stage) { \
    [[unroll]] for (int i = 0; i < LOADS; i++) { \
        int at = local + i * THREADS; \
        staged[(2 + (stage)) * STAGED + at / VECTORS * PITCH + at % VECTORS] = next_values[i]; \
    } \
}
uvec2 pack(f16vec4 v) { return uvec2(packFloat2x16(v.xy), packFloat2x16(v.zw)); }

// Scores of the queries and the staged keys.
#define MULTIPLY(scores, stage) { \
    [[unroll]] for (int c = 0; c < ACROSS; c++) { \
        scores[c] = MATRIX(float, Accumulator)(0); \
        [[unroll]] for (int d = 0; d < ALONG; d++) { \
            MATRIX(float16_t, B) k; \
            coopMatLoad(k, staged, (stage) * STAGED + c * SIDE * PITCH + d * SIDE / 8, PITCH, gl_CooperativeMatrixLayoutColumnMajor); \
            scores[c] = coopMatMulAdd(queries[d], k, scores[c]); \
        } \
    } \
}

// LOWEST in place of scores that are not seen, of positions from `start` on.
#define HIDE(scores, start) { \
    [[unroll]] for (int c = 0; c < ACROSS; c++) { \
        [[unroll]] for (int e = 0; e < OWN * EACH; e++) { \
            uint position = (start) + c * SIDE + COLUMN_OF(e % EACH); \
            if (position < begins[e / EACH] || position >= ends[e / EACH]) scores[c][e] = LOWEST; \
        } \
    } \
}

// Adds the staged values by the weights that the scores of positions from `start` on make.
#define ADD(scores, start, stage) { \
    if ((start) + SPAN > all_see || (start) < all_begin) HIDE(scores, start) \
    bool grows = false; \
    float most[OWN]; \
    [[unroll]] for (int own = 0; own < OWN; own++) { \
        most[own] = LOWEST; \
        [[unroll]] for (int c = 0; c < ACROSS; c++) { [[unroll]] for (int e = 0; e < EACH; e++) most[own] = max(most[own], scores[c][own * EACH + e]); } \
        OVER_ROW(most[own], max) \
        grows = grows || most[own] > top[own] + SLACK; \
    } \
    if (subgroupAny(grows)) { \
        [[unroll]] for (int own = 0; own < OWN; own++) { \
            float larger = most[own] > top[own] + SLACK ? most[own] : top[own]; \
            float shrink = exp2(top[own] - larger); \
            top[own] = larger; \
            totals[own] *= shrink; \
            [[unroll]] for (int d = 0; d < ALONG; d++) { [[unroll]] for (int e = 0; e < EACH; e++) sums[d][own * EACH + e] *= shrink; } \
        } \
    } \
    [[unroll]] for (int c = 0; c < ACROSS; c++) { \
        MATRIX(float16_t, A) weights; \
        [[unroll]] for (int e = 0; e < OWN * EACH; e++) { \
            float weight = exp2(scores[c][e] - top[e / EACH]); \
            totals[e / EACH] += weight; \
            weights[e] = float16_t(weight); \
        } \
        [[unroll]] for (int d = 0; d < ALONG; d++) { \
            MATRIX(float16_t, B) v; \
            coopMatLoad(v, staged, (2 + (stage)) * STAGED + c * SIDE * PITCH + d * SIDE / 8, PITCH, gl_CooperativeMatrixLayoutRowMajor); \
            sums[d] = coopMatMulAdd(weights, v, sums[d]); \
        } \
    } \
}

// A span, whose scores are there. What follows is on its way meanwhile: compilers keep loads of a turn at its start, and staging at its end.
#define TURN(scores, next, stage) { \
    LOAD_KEYS(start + 2 * SPAN) \
    LOAD_VALUES(start + SPAN) \
    MULTIPLY(next, 1 - (stage)) \
    ADD(scores, start, stage) \
    STAGE_KEYS(stage) \
    STAGE_VALUES(1 - (stage)) \
    barrier(); \
}

void main() {
    int local = int(gl_LocalInvocationIndex);
    int lane = int(gl_SubgroupInvocationID);
    // The last rows of a sequence see most: those of all heads begin first.
    uint turn = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint kv_head = turn % params.kv_heads;
    uint first = (gl_NumWorkGroups.x - 1 - turn / params.kv_heads) * TILE_X;
    uint sharing = params.heads / params.kv_heads;
    uint count = params.run * sharing;
    uvec2 of_run = runs[gl_WorkGroupID.z];
    uint cache = min(of_run.x, params.sequences - 1) * params.kv_heads + kv_head;
    uint past = of_run.y;
    uint token0 = gl_WorkGroupID.z * params.run;
    uint visible = min(past + (min(first + TILE_X, count) - 1) / sharing + 1, params.longest);
    uint all_see = min(past + first / sharing + 1, visible);
    uint last_end = past + min(first + TILE_X - 1, count - 1) / sharing + 1;
    uint all_begin = last_end - min(last_end, params.window);
    uint first_end = past + first / sharing + 1;
    uint first_seen = first_end - min(first_end, params.window);
    uint begin = first_seen / SPAN * SPAN;
    uint row0 = first + gl_SubgroupID * SIDE;
    // Rows that do not exist are read as the last one, and not written.
    uint begins[OWN], ends[OWN], head_of[OWN];
    [[unroll]] for (int own = 0; own < OWN; own++) {
        uint row = min(row0 + ROW_OF(own), count - 1), token = row / sharing, end = past + token + 1;
        begins[own] = end - min(end, params.window);
        ends[own] = min(end, visible);
        head_of[own] = (token0 + token) * (params.heads + 2 * params.kv_heads) + kv_head * sharing + row % sharing;
    }
    uvec4 next_keys[LOADS], next_values[LOADS];
    LOAD_KEYS(begin)
    LOAD_VALUES(begin)
    // With the logarithm of e, for exp2.
    MATRIX(float16_t, A) queries[ALONG];
    [[unroll]] for (int d = 0; d < ALONG; d++) {
        [[unroll]] for (int e = 0; e < OWN * EACH; e++)
            queries[d][e] = float16_t(qkv[head_of[e / EACH] * HEAD + d * SIDE + COLUMN_OF(e % EACH)] * (params.scale * 1.44269504));
    }
    MATRIX(float, Accumulator) sums[ALONG], even[ACROSS], odd[ACROSS];
    [[unroll]] for (int d = 0; d < ALONG; d++) sums[d] = MATRIX(float, Accumulator)(0);
    float totals[OWN], top[OWN];
    [[unroll]] for (int own = 0; own < OWN; own++) { totals[own] = 0.0; top[own] = LOWEST; }
    STAGE_KEYS(0)
    STAGE_VALUES(0)
    LOAD_KEYS(begin + SPAN)
    barrier();
    MULTIPLY(even, 0)
    STAGE_KEYS(1)
    barrier();
    [[dont_unroll]] for (uint start = begin; start < visible; start += SPAN) {
        TURN(even, odd, 0)
        start += SPAN;
        if (start >= visible) break;
        TURN(odd, even, 1)
    }
    [[unroll]] for (int own = 0; own < OWN; own++) {
        float total = totals[own];
        OVER_ROW(total, sum_of)
        uint row = row0 + ROW_OF(own);
        if (row < count) {
            uint output_head = (token0 + row / sharing) * params.heads + kv_head * sharing + row % sharing;
            [[unroll]] for (int d = 0; d < ALONG; d++) {
                [[unroll]] for (int e = 0; e < EACH; e += PAIR) {
                    uint at = (output_head * HEAD + d * SIDE + COLUMN_OF(e)) / PAIR;
                    NUMBERS attended = NUMBERS_OF(sums[d], own * EACH + e) / total;
                    if (params.add != 0) y[at] += attended; else y[at] = attended;
                }
            }
        }
    }
}

// Philox 4×32-10: four random words that follow from a counter and a key alone. See src/ops/philox.rs.
static inline uint4 philox(uint4 c, uint2 key) {
    for (uint i = 0; i < 10; ++i) {
        c = uint4(
            mulhi(c.z, 0xcd9e8d57u) ^ c.y ^ key.x, c.z * 0xcd9e8d57u,
            mulhi(c.x, 0xd2511f53u) ^ c.w ^ key.y, c.x * 0xd2511f53u);
        key += uint2(0x9e3779b9u, 0xbb67ae85u);
    }
    return c;
}

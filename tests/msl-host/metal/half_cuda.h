// A half with arithmetic, like _Float16. Sums and products are computed in float and then rounded, which equals rounding once.
#pragma once

struct half {
    unsigned short bits;
    half() = default;
    MSL_FN half(float value) : bits(__half_as_ushort(__float2half_rn(value))) {}
    MSL_FN operator float() const { return __half2float(__ushort_as_half(bits)); }
};

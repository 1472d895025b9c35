// A half that is a number, as _Float16 is. Sums and products of two are made in float and rounded, which is to round once.
#pragma once

struct half {
    unsigned short bits;
    half() = default;
    MSL_FN half(float value) : bits(__half_as_ushort(__float2half_rn(value))) {}
    MSL_FN operator float() const { return __half2float(__ushort_as_half(bits)); }
};

// A kernel's arguments, as objects that convert to the parameter's type, so that the type need not be parsed.
#pragma once

namespace msl {
struct Pointer {
    void* to;
    template <class T> MSL_FN operator T*() const { return (T*)to; }
};

struct Reference {
    void* to;
    template <class T> MSL_FN operator T&() const { return *(T*)to; }
};

#ifndef __CUDACC__
// A parameter in threadgroup memory.
struct Shared {
    unsigned site;
    const char* name;
    template <class T> operator T&() const { return *(T*)msl_threadgroup_memory(site, sizeof(T), name); }
};
#endif

struct Place {
    const unsigned* at;
    MSL_FN operator uint() const { return at[0]; }
    MSL_FN operator uint2() const { return uint2(at[0], at[1]); }
    MSL_FN operator uint3() const { return uint3(at[0], at[1], at[2]); }
};
}

// Memory between guard pages.
#pragma once
#include "fiber.h"
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

// Fills memory before use. Not zero; as a float it is tiny, as an index far out of bounds.
constexpr unsigned char FILL = 0xA5;

// Plain loops, since the thread sanitizer would count memset and memcpy as accesses of the kernel.
inline void fill(unsigned char* to, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) to[i] = FILL;
}
inline void copy(unsigned char* to, const void* from, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) to[i] = ((const unsigned char*)from)[i];
}

// Makes the thread sanitizer forget earlier accesses to pages that are about to be reused.
inline void forget(unsigned char* from, size_t bytes) {
#ifdef MSL_TSAN
    mmap(from, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
#endif
    (void)from, (void)bytes;
}

// Pages between inaccessible guard pages, of which there are `after` bytes behind them.
class Pages {
public:
    explicit Pages(size_t bytes, size_t after = GUARD) : size_(round_up(bytes)), after_(after) {
        base_ = (unsigned char*)mmap(nullptr, GUARD + size_ + after_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base_ == MAP_FAILED || mprotect(base_ + GUARD, size_, PROT_READ | PROT_WRITE)) __builtin_trap();
    }
    Pages(Pages&& other) : base_(other.base_), size_(other.size_), after_(other.after_) { other.base_ = nullptr; }
    ~Pages() {
        if (!base_) return;
        allow(begin(), size_);
        munmap(base_, GUARD + size_ + after_);
    }
    unsigned char* begin() const { return base_ + GUARD; }
    unsigned char* end() const { return begin() + size_; }

    static size_t round_up(size_t bytes) {
        const size_t page = sysconf(_SC_PAGESIZE);
        return (bytes + page - 1) / page * page;
    }

private:
    static constexpr size_t GUARD = 1 << 20;
    unsigned char* base_;
    size_t size_, after_;
};

// A device buffer: a copy of the caller's data that ends at a guard page, but for padding to the alignment of vectors.
class DeviceBuffer {
public:
    DeviceBuffer(const void* data, size_t bytes) : bytes_(bytes), padded_((bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT), pages_(padded_, REACH) {
        memset(pages_.begin(), FILL, pages_.end() - pages_.begin());
        memcpy(begin(), data, bytes);
        forbid(pages_.begin(), begin() - pages_.begin());
        forbid(begin() + bytes_, padded_ - bytes_);
    }
    DeviceBuffer(DeviceBuffer&&) = default;
    unsigned char* begin() const { return pages_.end() - padded_; }

    // Copies the contents back. Returns false if anything around them was overwritten.
    bool read(void* data) {
        allow(pages_.begin(), pages_.end() - pages_.begin());
        memcpy(data, begin(), bytes_);
        for (const unsigned char* p = pages_.begin(); p < pages_.end(); ++p)
            if ((p < begin() || p >= begin() + bytes_) && *p != FILL) return false;
        return true;
    }

private:
    static constexpr size_t ALIGNMENT = 16;
#ifdef MSL_TSAN
    static constexpr size_t REACH = (size_t)1 << 30; // Little address space is left beside its shadow.
#else
    // What an index of 32 bits reaches in words. Behind fewer guard pages lies other memory, which a wild index would change unseen.
    static constexpr size_t REACH = (size_t)4 << 32;
#endif
    size_t bytes_, padded_;
    Pages pages_;
};

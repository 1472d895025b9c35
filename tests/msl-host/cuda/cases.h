// Test problems: a kernel, its grid, and its buffers with their contents before and their expected contents after.
#pragma once
#include "runtime/runtime.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

typedef void (*Kernel)(msl_buffers);
struct NamedKernel { const char* name; Kernel kernel; };

[[noreturn]] inline void fail(const std::string& message) {
    fprintf(stderr, "%s\n", message.c_str());
    exit(2);
}

inline void cuda(cudaError_t error) {
    if (error != cudaSuccess) fail(std::string("CUDA: ") + cudaGetErrorString(error));
}

// A size in bytes, and the offsets in the data of the initial and of the expected contents.
struct Buffer { std::string type; size_t bytes, given, expected; };

struct Case {
    std::string symbol, name;
    bool timed;
    unsigned grid[3], threads[3];
    std::vector<Buffer> buffers;
    size_t blocks() const { return size_t(grid[0]) * grid[1] * grid[2]; }
};

// Counts of a comparison.
struct Tally {
    size_t problems = 0, numbers = 0, different = 0, nans = 0;
    void add(const Tally& o) {
        problems += o.problems, numbers += o.numbers, different += o.different, nans += o.nans;
    }
    void print(const char* what) const { printf("%-40s %8zu %14zu %10zu %zu\n", what, problems, numbers, different, nans); }
};

inline std::vector<unsigned char> read_file(const char* path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) fail(std::string("cannot read ") + path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::vector<Case> read_cases(const char* path) {
    std::ifstream file(path);
    if (!file) fail(std::string("cannot read ") + path);
    std::vector<Case> cases;
    for (std::string line, what; std::getline(file, line);) {
        std::istringstream words(line);
        words >> what;
        if (what == "case") {
            Case c;
            words >> c.symbol >> c.timed;
            for (unsigned& n : c.grid) words >> n;
            for (unsigned& n : c.threads) words >> n;
            std::getline(words >> std::ws, c.name);
            cases.push_back(c);
        } else {
            Buffer b;
            words >> b.type >> b.bytes >> b.given >> b.expected;
            cases.back().buffers.push_back(b);
        }
        if (words.bad() || cases.empty()) fail("unreadable: " + line);
    }
    return cases;
}

// Is it a NaN? All NaNs count as equal, since CPU and GPU produce different signs and payloads.
inline bool is_nan(const std::string& type, const unsigned char* number) {
    unsigned bits = 0;
    memcpy(&bits, number, type == "F16" ? 2 : 4);
    return (type == "F16" && (bits & 0x7fff) > 0x7c00) || (type == "F32" && (bits & 0x7fffffff) > 0x7f800000);
}

inline Tally compare(const Buffer& buffer, const unsigned char* got, const unsigned char* wanted, const std::string& name) {
    Tally tally;
    const size_t size = buffer.type == "F16" ? 2 : 4;
    for (size_t at = 0; at < buffer.bytes; at += size) {
        ++tally.numbers;
        if (!memcmp(got + at, wanted + at, size)) continue;
        if (is_nan(buffer.type, got + at) && is_nan(buffer.type, wanted + at)) {
            ++tally.nans;
            continue;
        }
        if (!tally.different++) printf("%s: number %zu of a buffer differs\n", name.c_str(), at / size);
    }
    return tally;
}

// A problem with its buffers on the GPU.
struct DeviceCase {
    const Case& c;
    const std::vector<unsigned char>& data;
    msl_buffers at{};

    DeviceCase(const Case& c, const std::vector<unsigned char>& data) : c(c), data(data) {
        if (c.buffers.size() > sizeof at.at / sizeof *at.at) fail("too many buffers");
        for (size_t i = 0; i < c.buffers.size(); ++i) {
            const Buffer& b = c.buffers[i];
            if (std::max(b.given, b.expected) + b.bytes > data.size()) fail("data.bin is too short");
            cuda(cudaMalloc(&at.at[i], std::max<size_t>(b.bytes, 16)));
            cuda(cudaMemcpy(at.at[i], data.data() + b.given, b.bytes, cudaMemcpyHostToDevice));
        }
    }
    ~DeviceCase() {
        for (void* p : at.at) cudaFree(p);
    }
    DeviceCase(const DeviceCase&) = delete;

    dim3 threads() const { return dim3(c.threads[0], c.threads[1], c.threads[2]); }
    void launch(Kernel kernel) const {
        kernel<<<dim3(c.grid[0], c.grid[1], c.grid[2]), threads()>>>(at);
        cuda(cudaGetLastError());
        cuda(cudaDeviceSynchronize());
    }
    // Compares all buffers, also those that must not change.
    Tally compare() const {
        Tally tally;
        for (size_t i = 0; i < c.buffers.size(); ++i) {
            std::vector<unsigned char> got(c.buffers[i].bytes);
            cuda(cudaMemcpy(got.data(), at.at[i], got.size(), cudaMemcpyDeviceToHost));
            tally.add(::compare(c.buffers[i], got.data(), data.data() + c.buffers[i].expected, c.name));
        }
        tally.problems = 1;
        return tally;
    }
};

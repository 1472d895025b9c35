// Runs the Metal kernels on an NVIDIA GPU, on the problems of cases.txt, and compares all buffers with the CPU's results.
//     main check    every problem, bit by bit
//     main time     times the problems marked for it
#include "cases.h"
#include "timing.h"
// Redefines names of CUDA and the C++ library, so it must come last.
#include "metal/metal.h"
#include "kernels.inc"

static const NamedKernel KERNELS[] = {
#define KERNEL(symbol) {#symbol, symbol},
#include "symbols.inc"
};

static Kernel kernel_of(const Case& c) {
    for (const NamedKernel& known : KERNELS)
        if (c.symbol == known.name) return known.kernel;
    fail("no kernel " + c.symbol);
}

static int check(const std::vector<Case>& cases, const std::vector<unsigned char>& data) {
    std::map<std::string, Tally> tallies;
    for (const Case& c : cases) {
        DeviceCase device(c, data);
        if (c.blocks() > 0) device.launch(kernel_of(c));
        tallies[c.symbol].add(device.compare());
    }
    Tally all;
    printf("%-40s %8s %14s %10s %s\n", "kernel", "problems", "numbers", "different", "NaNs with other bits");
    for (const auto& [symbol, tally] : tallies) {
        tally.print(symbol.c_str());
        all.add(tally);
    }
    all.print("all");
    printf("%s\n", all.different || all.problems == 0 ? "DIFFERENT" : "identical bits, except in NaNs");
    return all.different || all.problems == 0;
}

static int time_all(const std::vector<Case>& cases, const std::vector<unsigned char>& data) {
    int wrong = 0, timed = 0;
    printf("%-74s %9s %9s %9s %s\n", "weights from memory: copies exceed the cache", "median us", "best us", "GB/s", "result");
    for (const Case& c : cases)
        if (c.timed) {
            wrong += !time_case(c, data, kernel_of(c));
            ++timed;
        }
    printf("GB/s of packed weights, at the median\n");
    return wrong || !timed;
}

int main(int count, char** arguments) {
    const std::string what = count == 2 ? arguments[1] : "";
    if (what != "check" && what != "time") fail("main check | time");
    cudaDeviceProp properties;
    cuda(cudaGetDeviceProperties(&properties, 0));
    printf("%s, %d multiprocessors, %d MiB of L2\n", properties.name, properties.multiProcessorCount, properties.l2CacheSize >> 20);
    const std::vector<Case> cases = read_cases("cases.txt");
    const std::vector<unsigned char> data = read_file("data.bin");
    return what == "check" ? check(cases, data) : time_all(cases, data);
}

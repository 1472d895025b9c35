// Times a GEMV that reads its weights from memory: enough copies to exceed the cache, multiplied in turn, or stacked into one tall matrix.
#pragma once
#include "cases.h"
#include <chrono>
#include <functional>

// The buffer slots of a GEMV (src/ops/bitnet/bitlinear.rs). The first of its parameters is the number of rows.
enum { PARAMS, CODES, W_SCALE, X, X_SCALE, X_SUM, Y };

struct Times { double median, best; };

// Microseconds, after a second of warm-up.
inline Times time_of(const std::function<void()>& run) {
    const auto start = std::chrono::steady_clock::now();
    do {
        run();
        cuda(cudaDeviceSynchronize());
    } while (std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
    cudaEvent_t before, after;
    cuda(cudaEventCreate(&before));
    cuda(cudaEventCreate(&after));
    std::vector<double> times;
    for (int i = 0; i < 51; ++i) {
        float ms;
        cuda(cudaEventRecord(before, 0));
        run();
        cuda(cudaEventRecord(after, 0));
        cuda(cudaEventSynchronize(after));
        cuda(cudaEventElapsedTime(&ms, before, after));
        times.push_back(ms * 1e3);
    }
    std::sort(times.begin(), times.end());
    return {times[times.size() / 2], times[0]};
}

// `count` copies of a buffer, one after another.
inline void* repeated(const void* from, size_t bytes, unsigned count) {
    unsigned char* all;
    cuda(cudaMalloc((void**)&all, bytes * count));
    for (unsigned i = 0; i < count; ++i) cuda(cudaMemcpy(all + bytes * i, from, bytes, cudaMemcpyDeviceToDevice));
    return all;
}

// Times both ways; returns whether the results were right.
inline bool time_case(const Case& c, const std::vector<unsigned char>& data, Kernel kernel) {
    const DeviceCase device(c, data);
    const Buffer &codes = c.buffers[CODES], &y = c.buffers[Y];
    const unsigned copies = unsigned((size_t(512) << 20) / codes.bytes) + 1;
    unsigned char* weights = (unsigned char*)repeated(device.at.at[CODES], codes.bytes, copies);
    const auto print = [&](const std::string& how, Times times, unsigned of, bool right) {
        const double us = times.median / of, rate = codes.bytes * double(copies) / times.median * 1e-3;
        printf("%-74s %9.2f %9.2f %9.1f %s\n", (c.name + how).c_str(), us, times.best / of, rate, right ? "identical" : "DIFFERENT");
    };

    // One after another, in a CUDA graph, since a launch takes the host longer than such a kernel runs.
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    cuda(cudaStreamCreate(&stream));
    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (unsigned i = 0; i < copies; ++i) {
        msl_buffers at = device.at;
        at.at[CODES] = weights + i * codes.bytes;
        kernel<<<dim3(c.grid[0], c.grid[1], c.grid[2]), device.threads(), 0, stream>>>(at);
    }
    cuda(cudaStreamEndCapture(stream, &graph));
    cuda(cudaGraphInstantiate(&instance, graph, 0));
    const Times turns = time_of([&] { cuda(cudaGraphLaunch(instance, 0)); });
    const bool right_turns = device.compare().different == 0;
    const std::string count = ", " + std::to_string(copies) + " copies ";
    print(count + "in turn", turns, copies, right_turns);

    // As one matrix, without the gaps between kernels.
    unsigned params[3];
    memcpy(params, data.data() + c.buffers[PARAMS].given, sizeof params);
    params[0] *= copies;
    msl_buffers at = device.at;
    at.at[CODES] = weights;
    at.at[W_SCALE] = repeated(device.at.at[W_SCALE], c.buffers[W_SCALE].bytes, copies);
    cuda(cudaMalloc(&at.at[Y], y.bytes * copies));
    cuda(cudaMemset(at.at[Y], 0xee, y.bytes * copies));
    cuda(cudaMalloc(&at.at[PARAMS], sizeof params));
    cuda(cudaMemcpy(at.at[PARAMS], params, sizeof params, cudaMemcpyHostToDevice));
    const Times long_matrix = time_of([&] { kernel<<<dim3(c.grid[0] * copies), device.threads()>>>(at); });
    cuda(cudaGetLastError());
    std::vector<unsigned char> got(y.bytes * copies);
    cuda(cudaMemcpy(got.data(), at.at[Y], got.size(), cudaMemcpyDeviceToHost));
    bool right_long = true;
    for (unsigned i = 0; i < copies; ++i)
        right_long &= compare(y, got.data() + i * y.bytes, data.data() + y.expected, c.name).different == 0;
    print(count + "as one matrix", long_matrix, copies, right_long);

    for (int i : {PARAMS, W_SCALE, Y}) cuda(cudaFree(at.at[i]));
    cuda(cudaFree(weights));
    cuda(cudaGraphExecDestroy(instance));
    cuda(cudaGraphDestroy(graph));
    cuda(cudaStreamDestroy(stream));
    return right_turns && right_long;
}

#!/usr/bin/env bash
# Builds the Metal kernels for an NVIDIA GPU, compares their results, and times them. Needs only nvcc and a C++ compiler.
#     ARCH=sm_90 NVCC=nvcc ./run.sh [build]     `build` only compiles, which needs no GPU
set -euo pipefail
cd "$(dirname "$0")"
nvcc=${NVCC:-nvcc} arch=${ARCH:-native}
mkdir -p build
# Every operation is rounded once, as on the CPU; only fma() is fused.
flags=(-std=c++17 -O3 -fmad=false -prec-div=true -prec-sqrt=true -ftz=false -arch="$arch")
"$nvcc" --version | tail -n 2
"$nvcc" "${flags[@]}" -o build/main main.cu
[ "${1:-}" != build ] || exit 0
build/main check
build/main time
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do compute-sanitizer --tool $tool --error-exitcode 3 build/main check | tail -n 3; done
else
    echo "no compute-sanitizer: memory and races not checked"
fi

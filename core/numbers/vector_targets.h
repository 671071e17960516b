#pragma once

/// Marks a function whose loops are compiled for AVX-512, AVX2 and the baseline; the loader chooses
/// one version when the program starts. All three give the same bits, because no multiply-adds are
/// fused (-ffp-contract=off) and reductions have a fixed order. The macro is empty under
/// sanitizers, because they are not yet initialised when the loader chooses.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define TESSERA_VECTOR_TARGETS __attribute__((target_clones("avx512f", "avx2", "default")))
/// Like TESSERA_VECTOR_TARGETS, for loops that call std::fma. "fma" takes the place of "avx2",
/// because AVX2 alone does not have that instruction.
#define TESSERA_FMA_TARGETS __attribute__((target_clones("avx512f", "fma", "default")))
#else
#define TESSERA_VECTOR_TARGETS
#define TESSERA_FMA_TARGETS
#endif

#pragma once

/// Marks a function whose loops are compiled for AVX-512, AVX2 and the baseline; the loader chooses
/// one version when the program starts. All three give the same bits, because no multiply-adds are
/// fused (-ffp-contract=off) and reductions have a fixed order. Empty under sanitizers, which are
/// not initialised when the choice is made.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define TESSERA_VECTOR_TARGETS __attribute__((target_clones("avx512f", "avx2", "default")))
/// Like TESSERA_VECTOR_TARGETS, with std::fma as an instruction, which AVX2 alone does not have.
#define TESSERA_FMA_TARGETS __attribute__((target_clones("avx512f", "fma", "default")))
#else
#define TESSERA_VECTOR_TARGETS
#define TESSERA_FMA_TARGETS
#endif

#pragma once

/// Marks a function whose loops are compiled for AVX-512, AVX2 and the baseline; one is chosen when
/// the program loads. All three give the same bits: nothing is contracted into fused multiply-adds
/// (-ffp-contract=off) and reductions are written in a fixed order. Empty under sanitizers, which
/// are not ready when the choice is made.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define TESSERA_VECTOR_TARGETS __attribute__((target_clones("avx512f", "avx2", "default")))
/// The same with std::fma as an instruction, which AVX2 alone does not have.
#define TESSERA_FMA_TARGETS __attribute__((target_clones("avx512f", "fma", "default")))
#else
#define TESSERA_VECTOR_TARGETS
#define TESSERA_FMA_TARGETS
#endif

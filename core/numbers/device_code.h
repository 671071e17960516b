#pragma once

/// Marks an inline function that nvcc also compiles for the device, so that a formula is written
/// once for both. Such a function calls only other marked functions, constexpr functions and
/// functions of <cmath>. The results have the same bits on host and device if no multiply-adds are
/// fused: -ffp-contract=off for the host compiler, --fmad=false for nvcc.
#ifdef __CUDACC__
#define TESSERA_DEVICE_CODE __host__ __device__
#else
#define TESSERA_DEVICE_CODE
#endif

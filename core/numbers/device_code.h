#pragma once

/// Marks an inline function that nvcc also compiles for the device, so that a formula is written
/// once for both. Such a function calls only other marked functions, constexpr functions and those
/// of <cmath>. The bits are the same on both sides if nothing is contracted into fused
/// multiply-adds: -ffp-contract=off here, --fmad=false there.
#ifdef __CUDACC__
#define TESSERA_DEVICE_CODE __host__ __device__
#else
#define TESSERA_DEVICE_CODE
#endif

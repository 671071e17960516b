#pragma once

/// Marks an inline function that nvcc also compiles for the device, so that a formula stands once
/// for both. Such a function calls only others that are marked, constexpr functions and the
/// functions of <cmath>. The bits are the same on both sides as long as nothing is contracted into
/// fused multiply-adds: -ffp-contract=off here, --fmad=false there.
#ifdef __CUDACC__
#define TESSERA_DEVICE_CODE __host__ __device__
#else
#define TESSERA_DEVICE_CODE
#endif

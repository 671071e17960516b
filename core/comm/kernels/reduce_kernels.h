#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>

#include "tessera/process_group.h"

namespace tessera::internal::kernels {

/// Where results are written: into the caches, which reads what is overwritten first, or past them.
enum class Stores { kCached, kStreaming };

/// Local. Combines `numel` elements of `ranks` sources, in the order given (sums of fp32 and fp64
/// as `order` says), and writes the result to every target. Targets may be sources. Elementwise:
/// element i of the result depends on element i of the sources alone, so any cut of the range into
/// calls gives the same bits.
///
/// fp32 and fp64 are summed in their own precision, bf16 and fp16 in fp32 and rounded once; AVG is
/// one true division of the sum by `divisor`, or by `ranks` if that is 0; MIN and MAX give NaN
/// where any source is NaN; integers wrap. Products of bf16 and fp16 are in fp32 and rounded once.
/// For bool, SUM, MAX and BOR mean "or"; PRODUCT, MIN and BAND mean "and".
///
/// kStreaming is for results that no cache would keep until they are used, in one target that is no
/// source and begins on an element. It is a hint that only sums of fp32 and fp64 follow. Other
/// ranks see the results as they see ordinary ones: after whatever synchronises later.
void reduce(c10::ScalarType dtype, ReduceOp op, const char* const* sources, int ranks,
            char* const* targets, int target_count, int64_t numel, Stores stores = Stores::kCached,
            double divisor = 0.0, SumOrder order = SumOrder::kRanks);

}  // namespace tessera::internal::kernels

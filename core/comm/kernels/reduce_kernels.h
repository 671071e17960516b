#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>

#include "tessera/process_group.h"

namespace tessera::internal::kernels {

/// How results are written. kCached stores go through the caches, which first read each line that
/// is overwritten. kStreaming stores go past the caches.
enum class Stores { kCached, kStreaming };

/// Local. Combines `numel` elements of each of `ranks` sources, in the order of the sources, except
/// that fp32 and fp64 are summed in the order that `order` gives. Then writes the result to every
/// target. Targets may be sources. Elementwise: element i of the result depends on element i of the
/// sources alone, so splitting the range into several calls gives the same bits.
///
/// fp32 and fp64 are summed in their own precision, bf16 and fp16 in fp32 and rounded once; AVG is
/// one true division of the sum by `divisor`, or by `ranks` if `divisor` is 0; MIN and MAX give NaN
/// where any source is NaN; integers wrap. Products of bf16 and fp16 are in fp32 and rounded once.
/// For bool, SUM, MAX and BOR mean "or"; PRODUCT, MIN and BAND mean "and".
///
/// kStreaming is for results that no cache would keep until they are used. It requires a single
/// target that is not a source and is aligned to its elements. Only sums of fp32 and fp64 then go
/// past the caches; other operations ignore it. As with ordinary stores, other ranks see the
/// results after the next synchronisation.
void reduce(c10::ScalarType dtype, ReduceOp op, const char* const* sources, int ranks,
            char* const* targets, int target_count, int64_t numel, Stores stores = Stores::kCached,
            double divisor = 0.0, SumOrder order = SumOrder::kRanks);

}  // namespace tessera::internal::kernels

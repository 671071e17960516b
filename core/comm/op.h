#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>

namespace tessera {

/// What ranks call together, for comparisons and messages.
enum class Op : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kBarrier,
  kSubgroup,
  kMakeWindow,
  kSharedBuffer,
  kInit,
  kAllocate,
};

/// "all_reduce", "make_window", ...
const char* to_string(Op op);

/// "float32", "int64", ...: the dtypes of collectives as messages name them; "unknown" for others.
const char* dtype_name(c10::ScalarType dtype);

}  // namespace tessera

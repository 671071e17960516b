#pragma once

#include <cstdint>
#include <cstring>

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include "tessera/process_group.h"
#include "tessera/tests/support/same_bits.h"

namespace tessera::internal::testing {

/// Where a rank's tensors are.
enum class Memory : uint8_t { kArena, kPrivate, kMixed };
inline constexpr Memory kMemories[] = {Memory::kArena, Memory::kPrivate, Memory::kMixed};

inline at::Tensor make(ProcessGroup& group, Memory memory, int64_t numel, at::ScalarType dtype) {
  const bool arena =
      memory == Memory::kArena || (memory == Memory::kMixed && group.rank() % 2 == 0);
  return arena ? group.allocate(numel, dtype) : at::empty({numel}, dtype);
}

inline at::Tensor make_copy(ProcessGroup& group, Memory memory, const at::Tensor& from) {
  at::Tensor made = make(group, memory, from.numel(), from.scalar_type());
  made.copy_(from);
  return made;
}

}  // namespace tessera::internal::testing

#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// Buffers from this size on are mapped in huge pages (madvise), which cost a tenth to touch for
/// the first time and a fraction of the address translations: 4 MiB, two huge pages.
inline constexpr int64_t kLargeBytes = int64_t{4} << 20;

/// Local. An uninitialised 1-d CPU tensor in memory of this process alone that begins on a page.
/// Its memory goes back to the system with it. Throws c10::Error naming the size if there is no
/// space.
at::Tensor allocate_private(int64_t numel, at::ScalarType dtype);

}  // namespace tessera::internal

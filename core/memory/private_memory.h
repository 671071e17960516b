#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// Buffers of at least this size are mapped in huge pages (madvise), which take a tenth of the time
/// at the first touch and need a fraction of the address translations. 4 MiB are two huge pages.
inline constexpr int64_t kLargeBytes = int64_t{4} << 20;

/// Returns an uninitialised 1-d CPU tensor in private memory of this process, aligned to a page.
/// The memory is returned to the system when the tensor is destroyed. Throws c10::Error naming the
/// size if there is no space. Local.
at::Tensor allocate_private(int64_t numel, at::ScalarType dtype);

}  // namespace tessera::internal

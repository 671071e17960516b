#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera {

/// Local. An uninitialised 1-d CPU tensor in memory of this process alone that begins on a page.
/// Throws c10::Error naming the size if there is no space.
at::Tensor allocate_private(int64_t numel, at::ScalarType dtype);

}  // namespace tessera

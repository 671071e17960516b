#pragma once

#include "tessera/optim/cuda/abi.h"
#include "tessera/optim/cuda/narrow.h"

namespace tessera::internal::cuda {

/// Returns use(`data` as a pointer to elements of `dtype`); kRefusedDtype if there is no such
/// Dtype.
template <typename Use>
int with_elements(Dtype dtype, const void* data, const Use& use) {
  switch (dtype) {
    case Dtype::kFloat:
      return use(static_cast<const float*>(data));
    case Dtype::kBFloat16:
      return use(static_cast<const BFloat16*>(data));
    case Dtype::kHalf:
      return use(static_cast<const Half*>(data));
  }
  return kRefusedDtype;
}

}  // namespace tessera::internal::cuda

#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace prove {

/// Rows of data. A step trains on all rows of its batch; a rank trains on its part of them.
struct Batch {
  at::Tensor input;
  at::Tensor target;

  int64_t size() const { return input.size(0); }
  Batch rows(int64_t first, int64_t count) const {
    return {input.narrow(0, first, count), target.narrow(0, first, count)};
  }
};

}  // namespace prove

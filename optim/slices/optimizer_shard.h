#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/flat_layout.h"

namespace tessera::internal {

/// The slice of one unit that this rank updates.
struct OptimizerShard {
  at::Tensor values;  ///< [slice numel], a view of the flat parameter buffer; updated in place
  std::vector<Segment> segments;  ///< `parameter` indexes the ParameterTable; `buffer_offset`
                                  ///< counts from the slice's start
};

}  // namespace tessera::internal

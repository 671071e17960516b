#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/op.h"
#include "tessera/core/comm/process_group.h"

namespace tessera::nccl {

/// What a rank calls. Equal on all ranks, or the calls do not fit together.
struct Call {
  int64_t sequence = -1;
  Op op = Op::kInit;
  ReduceOp reduce_op = ReduceOp::kSum;
  bool is_scaled = false;  ///< a pre-multiplied sum
  at::ScalarType dtype = at::kByte;
  int64_t numel = -1;  ///< -1 where no tensor takes part
  int root = -1;       ///< -1 where there is none
  std::string tag;
  std::string place;  ///< of its tensors in windows; "" where there is none

  static Call of(Op op, std::string_view tag);
  static Call of(Op op, std::string_view tag, const at::Tensor& tensor);

  /// "all_reduce SUM float32[1024] 'bucket 3'".
  std::string text() const;
};

}  // namespace tessera::nccl

#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/nccl/api.h"
#include "tessera/core/comm/process_group.h"

namespace tessera::nccl {

DataType dtype_of(at::ScalarType dtype);

/// Throws c10::Error unless `tensor` is of a floating dtype.
void check_scaled(const char* op, const at::Tensor& tensor);

/// NCCL's operator for one call: a built-in one, or with a factor one that lives as long as this,
/// which may be gone when the call has returned.
class Reduction {
 public:
  Reduction(const Api& api, OpaqueComm* comm, at::ScalarType dtype, ReduceOp op,
            std::optional<double> factor);
  ~Reduction();
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;

  /// Whether it could be made.
  Result result() const { return result_; }
  RedOp op() const { return op_; }
  DataType dtype() const { return dtype_; }

 private:
  const Api& api_;
  OpaqueComm* const comm_;
  const DataType dtype_;
  RedOp op_;
  Result result_ = Result::kSuccess;
  bool is_made_ = false;
};

}  // namespace tessera::nccl

#include "tessera/core/layout/own_memory.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include "tessera/core/layout/flat_buffer.h"

namespace tessera::internal {

void move_to_own_memory(const at::Tensor& tensor) {
  TORCH_INTERNAL_ASSERT(fills_storage(tensor));
  const c10::NoGradGuard no_grad;
  const at::Tensor copy =
      at::empty({tensor.numel()}, at::TensorOptions(tensor.scalar_type()).device(tensor.device()));
  view_like(copy, {0, tensor.numel()}, tensor).copy_(tensor.detach());
  c10::StorageImpl& from = *copy.storage().unsafeGetStorageImpl();
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      std::move(from._mutable_data_ptr_no_checks()));
}

}  // namespace tessera::internal

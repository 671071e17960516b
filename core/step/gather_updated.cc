#include "tessera/core/step/gather_updated.h"

namespace tessera::internal {

std::shared_ptr<Work> gather_updated(ProcessGroup& group, const at::Tensor& values,
                                     std::string_view unit) {
  const int64_t slice_numel = values.numel() / group.size();
  return group.all_gather(values, values.narrow(0, group.rank() * slice_numel, slice_numel), unit);
}

}  // namespace tessera::internal

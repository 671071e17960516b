#include "tessera/core/comm/hosts/levels.h"

#include <utility>

#include <ATen/ops/from_blob.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/host_memory.h"

namespace tessera::internal::hosts {

Levels make_levels(std::shared_ptr<ProcessGroup> flat, std::shared_ptr<ProcessGroup> inside,
                   HostLayout layout) {
  const int rank = flat->rank();
  TORCH_INTERNAL_ASSERT(layout.ranks() == flat->size() && layout.is_two_level() &&
                        inside->size() == layout.ranks_per_host() &&
                        inside->rank() == layout.local_of(rank));
  auto moves = duplicate(*flat, "hosts: moves");
  auto inside_last = duplicate(*inside, "hosts: last");
  std::shared_ptr<ProcessGroup> across;
  for (int local = 0; local < layout.ranks_per_host(); ++local) {
    auto made = flat->subgroup(layout.column(local), absl::StrCat("hosts: across ", local));
    if (made != nullptr) across = std::move(made);
  }
  auto calls = duplicate(*across, "calls");
  return {.layout = std::move(layout),
          .rank = rank,
          .flat = std::move(flat),
          .moves = std::move(moves),
          .inside = std::move(inside),
          .inside_last = std::move(inside_last),
          .across = std::move(across),
          .calls = std::move(calls)};
}

at::Tensor part_of(const at::Tensor& tensor, int64_t begin, int64_t numel) {
  const auto element = static_cast<int64_t>(tensor.element_size());
  return at::from_blob(
      data_of(tensor) + begin * element, {numel}, [tensor](void*) {},
      at::TensorOptions().dtype(tensor.scalar_type()));
}

}  // namespace tessera::internal::hosts

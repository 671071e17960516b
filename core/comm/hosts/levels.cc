#include "tessera/core/comm/hosts/levels.h"

#include <utility>

#include <ATen/ops/from_blob.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/errors.h"

namespace tessera::internal::hosts {
namespace {

/// The groups that are made of the first two.
void make_more(Levels& levels) {
  levels.moves = duplicate(*levels.flat, "hosts: moves");
  levels.inside_last = duplicate(*levels.inside, "hosts: last");
  for (int local = 0; local < levels.locals(); ++local) {
    auto made =
        levels.flat->subgroup(levels.layout.column(local), absl::StrCat("hosts: across ", local));
    if (made != nullptr) levels.across = std::move(made);
  }
  levels.calls = duplicate(*levels.across, "calls");
}

}  // namespace

Levels make_levels(std::shared_ptr<ProcessGroup> flat, std::shared_ptr<ProcessGroup> inside,
                   HostLayout layout) {
  const int rank = flat->rank();
  TORCH_INTERNAL_ASSERT(layout.ranks() == flat->size() && layout.is_two_level() &&
                        inside->size() == layout.ranks_per_host() &&
                        inside->rank() == layout.local_of(rank));
  Levels levels{.layout = std::move(layout),
                .rank = rank,
                .flat = std::move(flat),
                .moves = nullptr,
                .inside = std::move(inside),
                .inside_last = nullptr,
                .across = nullptr,
                .calls = nullptr};
  try {
    make_more(levels);
  } catch (const CommError& error) {
    // The others have made theirs and gone on, and failed. What unwinds here would be another cause
    // for the ranks of this host.
    levels.inside->abort(error.cause());
    levels.flat->abort(error.cause());
    throw;
  }
  return levels;
}

at::Tensor part_of(const at::Tensor& tensor, int64_t begin, int64_t numel) {
  const auto element = static_cast<int64_t>(tensor.element_size());
  return at::from_blob(
      data_of(tensor) + begin * element, {numel}, [tensor](void*) {},
      at::TensorOptions().dtype(tensor.scalar_type()));
}

}  // namespace tessera::internal::hosts

#include "tessera/core/step/host_all_gather.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

namespace tessera::internal {
namespace {

/// Allocates `words` integers in host memory: in the group's own memory if its collectives complete
/// on the host, else in ordinary memory.
at::Tensor make_words(ProcessGroup& group, int64_t words) {
  if (group.can().completes_on_host) return group.allocate(words, at::kLong);
  return at::empty({words}, at::kLong);
}

}  // namespace

HostAllGather::HostAllGather(ProcessGroup& group, int64_t words)
    : group_(group),
      size_(group.size()),
      words_(words),
      input_(make_words(group, words)),
      output_(make_words(group, size_ * words)),
      mine_(input_.mutable_data_ptr<int64_t>()),
      all_(output_.const_data_ptr<int64_t>()) {
  std::fill_n(mine_, words, int64_t{0});
}

void HostAllGather::exchange(std::string_view tag) {
  group_.all_gather_on_host(output_, input_, tag);
}

void HostAllGather::start(std::string_view tag) {
  under_way_ = group_.start_gather_on_host(output_, input_, tag);
}

void HostAllGather::finish() { std::exchange(under_way_, nullptr)->wait(); }

}  // namespace tessera::internal

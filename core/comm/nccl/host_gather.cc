#include "tessera/core/comm/nccl/host_gather.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

namespace tessera::internal::nccl {

HostGather::HostGather(std::shared_ptr<Pending> pending, std::shared_ptr<ControlChannel> channel,
                       at::Tensor output, const at::Tensor& input)
    : pending_(std::move(pending)),
      channel_(std::move(channel)),
      output_(std::move(output)),
      part_bytes_(static_cast<size_t>(input.nbytes())) {
  channel_->start(*pending_, {static_cast<const char*>(input.const_data_ptr()), part_bytes_});
}

HostGather::~HostGather() {
  if (!is_open_) return;
  channel_->abandon();
  pending_->mark_finished();  // so it cannot time out
}

void HostGather::wait() {
  if (!is_open_) {
    if (!pending_->look()) pending_->throw_if_failed();
    return;
  }
  is_open_ = false;
  pending_->rewind();
  pending_->carry_out([this] { take(channel_->finish(*pending_)); });
  pending_->mark_finished();
}

/// Every rank's part into the output. They come from outside this process, whatever the calls say.
void HostGather::take(const std::vector<std::string>& parts) {
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].size() == part_bytes_) continue;
    pending_->fail(absl::StrCat("got ", parts[rank].size(), " bytes of ",
                                pending_->progress().name_of(static_cast<int>(rank)), ", expected ",
                                part_bytes_, "; give every world a table of its own"));
  }
  auto* to = static_cast<char*>(output_.mutable_data_ptr());
  for (size_t rank = 0; rank < parts.size() && part_bytes_ > 0; ++rank) {
    std::memcpy(to + rank * part_bytes_, parts[rank].data(), part_bytes_);
  }
}

}  // namespace tessera::internal::nccl

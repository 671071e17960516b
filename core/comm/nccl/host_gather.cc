#include "tessera/core/comm/nccl/host_gather.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace tessera::nccl {

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
  pending_->mark_finished();  // nobody is late for it
}

void HostGather::wait() {
  if (!is_open_) {
    if (!pending_->look()) pending_->throw_if_failed();
    return;
  }
  is_open_ = false;
  pending_->rewind();
  const std::vector<std::string> parts = channel_->finish(*pending_);
  auto* to = static_cast<char*>(output_.mutable_data_ptr());
  // Equal calls have equal sizes.
  for (size_t rank = 0; rank < parts.size() && part_bytes_ > 0; ++rank) {
    std::memcpy(to + rank * part_bytes_, parts[rank].data(), part_bytes_);
  }
  pending_->mark_finished();
}

}  // namespace tessera::nccl

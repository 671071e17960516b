#include "tessera/fsdp/collective_source.h"

#include <utility>

namespace tessera::internal {

CollectiveSource::CollectiveSource(ProcessGroup& group, std::string name, at::Tensor shard,
                                   std::shared_ptr<ShardUploads> host)
    : group_(group), name_(std::move(name)), shard_(std::move(shard)), host_(std::move(host)) {}

std::shared_ptr<Work> CollectiveSource::start(const at::Tensor& to) {
  if (host_ == nullptr) return group_.all_gather(to, shard_, name_);
  const at::Tensor own = to.narrow(0, group_.rank() * shard_.numel(), shard_.numel());
  host_->start(own, shard_);
  const std::shared_ptr<void> behind_the_copy = host_->use();
  return group_.all_gather(to, own, name_);
}

int64_t CollectiveSource::received_bytes() const {
  return static_cast<int64_t>(shard_.nbytes()) * (group_.size() - 1);
}

}  // namespace tessera::internal

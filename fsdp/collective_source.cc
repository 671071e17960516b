#include "tessera/fsdp/collective_source.h"

#include <utility>

namespace tessera {

CollectiveSource::CollectiveSource(ProcessGroup& group, std::string name, at::Tensor shard)
    : group_(group), name_(std::move(name)), shard_(std::move(shard)) {}

int64_t CollectiveSource::fetch(const at::Tensor& to, From /*from*/) {
  start(to)->wait();
  return received_bytes();
}

std::shared_ptr<Work> CollectiveSource::start(const at::Tensor& to) {
  return group_.all_gather(to, shard_, name_);
}

int64_t CollectiveSource::received_bytes() const {
  return static_cast<int64_t>(shard_.nbytes()) * (group_.size() - 1);
}

}  // namespace tessera

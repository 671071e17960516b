#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/shm/link.h"

namespace tessera::internal::shm {

/// The ranks' parts of a window, each in the mapping of a peer's arena. Holds the mappings and the
/// pages with the failure state, but neither the link nor the world.
class Memory final : public RemoteMemory {
 public:
  /// When all ranks have posted `call`, a make_window(). Maps segments that are not mapped yet.
  Memory(const Link& link, const Call& call);

  std::string failure() const override;
  std::shared_ptr<Work> read(int rank, int64_t begin_bytes, const at::Tensor& to,
                             std::string_view tag, int64_t version) override;
  int64_t load(int rank, int64_t begin_bytes) override;

 private:
  const std::shared_ptr<Segment> group_memory_;
  const std::shared_ptr<Segment> world_memory_;
  const Poison& group_poison_;
  const Poison& world_poison_;
  std::vector<std::shared_ptr<Segment>> segments_;  // by rank; of empty windows none
  std::vector<const char*> sources_;                // by rank
};

}  // namespace tessera::internal::shm

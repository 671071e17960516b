#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/hosts/host_layout.h"
#include "tessera/core/comm/hosts/read_cache.h"

namespace tessera::internal::hosts {

/// The ranks' parts of a window. Those of this host are read in its shared memory, others between
/// hosts; of these, what has a version comes to a host once: Note [One copy for a host].
class Memory final : public RemoteMemory {
 public:
  /// Of rank `rank` of a group. `number`: of the window among those that share the cache.
  Memory(HostLayout layout, int rank, std::string group, std::shared_ptr<RemoteMemory> inside,
         std::shared_ptr<RemoteMemory> flat, std::shared_ptr<ReadCache> cache, int64_t number);

  std::string failure() const override;
  std::shared_ptr<Work> read(int rank, int64_t begin_bytes, const at::Tensor& to,
                             std::string_view tag, int64_t version) override;
  int64_t load(int rank, int64_t begin_bytes) override;

 private:
  bool is_here(int rank) const { return layout_.host_of(rank) == layout_.host_of(rank_); }

  const HostLayout layout_;
  const int rank_;
  const std::string group_;
  const std::shared_ptr<RemoteMemory> inside_;
  const std::shared_ptr<RemoteMemory> flat_;
  const std::shared_ptr<ReadCache> cache_;
  const int64_t number_;
};

}  // namespace tessera::internal::hosts

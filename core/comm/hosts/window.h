#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "tessera/core/comm/hosts/host_layout.h"
#include "tessera/core/comm/hosts/outer_group.h"
#include "tessera/core/comm/hosts/read_cache.h"
#include "tessera/core/comm/hosts/world.h"
#include "tessera/window.h"

namespace tessera::internal::hosts {

/// Reads of ranks on this host go through its shared memory, others between hosts; of these, what
/// has a version comes to a host once: Note [One copy for a host]. Holds neither group, as the
/// windows that it is made of do not.
class Window final : public tessera::Window {
 public:
  struct Parts {
    std::shared_ptr<tessera::Window> inside;  ///< of this host's ranks
    std::shared_ptr<tessera::Window> flat;    ///< of all
    std::shared_ptr<ReadCache> cache;         ///< null: each rank reads for itself
    int64_t number = 0;                       ///< among the windows that share the cache
    WeakHostRanks host_ranks;
    std::weak_ptr<World> world;  ///< that fails with a read
  };

  /// Of the ranks of `layout`, of which `rank` is this one. `own`: its part.
  Window(const HostLayout& layout, int rank, const at::Tensor& own, Parts parts)
      : layout_(layout),
        rank_(rank),
        numel_(own.numel()),
        dtype_(own.scalar_type()),
        parts_(std::move(parts)) {}

  std::shared_ptr<Work> start_read(int rank, int64_t begin, const at::Tensor& to,
                                   std::string_view tag, int64_t version) override;
  int64_t load(int rank, int64_t index) const override;
  void store(int64_t index, int64_t value) override;

 private:
  bool is_here(int rank) const;
  std::shared_ptr<Work> start_remote_read(int rank, int64_t begin, const at::Tensor& to,
                                          std::string_view tag, int64_t version);

  const HostLayout layout_;
  const int rank_;
  const int64_t numel_;
  const at::ScalarType dtype_;
  const Parts parts_;
};

}  // namespace tessera::internal::hosts

#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/shm/arena.h"
#include "tessera/core/comm/shm/member.h"
#include "tessera/core/process/fork.h"
#include "tessera/window.h"

namespace tessera::internal::shm {

/// Reads copy directly from the mapping of a peer's arena. Holds the mappings, the pages with the
/// failure state and its own buffer, but neither the group nor the world: a window does not delay
/// this rank's leaving them, and reads still work then. In a child of fork() all calls throw
/// CommError.
class Window final : public tessera::Window {
 public:
  /// Local. Called after every rank has posted the location of its buffer, and before the phase in
  /// which the ranks agree that all have found it. Maps segments that are not mapped yet.
  Window(Member& member, at::Tensor own);

  std::shared_ptr<Work> start_read(int rank, int64_t begin, const at::Tensor& to,
                                   std::string_view tag, int64_t version) override;
  int64_t load(int rank, int64_t index) const override;
  void store(int64_t index, int64_t value) override;

 private:
  void require_own_process(const char* op, std::string_view tag) const;

  const Origin origin_;
  const at::Tensor own_;
  const int rank_;
  const int world_rank_;
  const std::string group_name_;
  const std::shared_ptr<Segment> group_memory_;
  const std::shared_ptr<Segment> world_memory_;
  const Poison& group_poison_;
  const Poison& world_poison_;
  std::vector<std::shared_ptr<Segment>> segments_;  // by rank; of empty windows none
  std::vector<const char*> sources_;                // by rank
};

}  // namespace tessera::internal::shm

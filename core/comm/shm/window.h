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

/// Reads copy straight from the mapping of a peer's arena. Holds the mappings, the pages where a
/// failure is told and its own buffer, but neither the group nor the world: leaving those is not
/// put off by a window that is still there, and reads work on. In a child of fork() all calls throw
/// CommError.
class Window final : public tessera::Window {
 public:
  /// Local, after every rank has posted its call with where its buffer lies, and before the phase
  /// in which they learn that all have found it. Maps what is not mapped yet.
  Window(Member& member, at::Tensor own);

  void read(int rank, int64_t begin, const at::Tensor& to, std::string_view tag = {}) override;
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

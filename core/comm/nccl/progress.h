#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tessera/collective.h"

namespace tessera::internal::nccl {

/// A call of this rank, with the number that its group has given it; -1 if it has none.
struct NumberedCall {
  int64_t sequence = -1;
  CallSignature signature;
  std::string tag;

  static NumberedCall of(const Collective& collective) {
    return {.signature = collective.signature(), .tag = std::string(collective.tag)};
  }

  /// Returns a description such as "all_reduce SUM float32[1024] 'bucket 3'".
  std::string text() const { return describe(signature, tag); }
};

/// How far this rank has come on one group. Ranks exchange this at a time-out. Thread-safe.
class Progress {
 public:
  /// `world_ranks[r]` is the world rank of the group's rank r.
  Progress(std::string group, std::vector<int> world_ranks)
      : group_(std::move(group)), world_ranks_(std::move(world_ranks)) {}

  const std::string& group() const { return group_; }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  /// Returns the name of the group's rank `rank` in messages: "rank 1" if it has the same number in
  /// the world, else its number there, as in "rank 3 of the world".
  std::string name_of(int rank) const {
    const int world_rank = world_ranks_[rank];
    return absl::StrCat("rank ", world_rank, world_rank == rank ? "" : " of the world");
  }

  /// Gives `call` the next number.
  void begin(NumberedCall& call) { call.sequence = begun_++; }
  void leave() { has_left_ = true; }

  /// Returns text for the table: whether this rank has left, and how many calls it has begun.
  std::string report() const { return absl::StrCat(has_left_ ? "left" : "in", " ", begun_.load()); }

 private:
  const std::string group_;
  const std::vector<int> world_ranks_;
  std::atomic<int64_t> begun_{0};
  std::atomic<bool> has_left_{false};
};

}  // namespace tessera::internal::nccl

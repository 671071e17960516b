#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/collective.h"

namespace tessera::internal::nccl {

/// A call of this rank, as its group numbers it.
struct NumberedCall {
  int64_t sequence = -1;
  CallSignature signature;
  std::string tag;

  static NumberedCall of(const Collective& collective);
  static NumberedCall of(Op op, std::string_view tag = {});

  /// "all_reduce SUM float32[1024] 'bucket 3'".
  std::string text() const { return describe(signature, tag); }
};

/// How far this rank has come on one group. Ranks tell each other after a time-out. Thread-safe.
class Progress {
 public:
  /// `world_ranks`: of the group's ranks, in order.
  Progress(std::string group, std::vector<int> world_ranks);

  const std::string& group() const { return group_; }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  /// "rank 1", and its number in the world where that is another one.
  std::string name_of(int rank) const;

  /// Numbers the call.
  void begin(NumberedCall& call) { call.sequence = begun_++; }
  void leave() { has_left_ = true; }

  /// For the table: how many calls this rank has begun, and whether it has left.
  std::string report() const;

 private:
  const std::string group_;
  const std::vector<int> world_ranks_;
  std::atomic<int64_t> begun_{0};
  std::atomic<bool> has_left_{false};
};

/// One rank's report, read back, and behind it what the rank has called.
struct Report {
  int64_t begun = -1;  ///< -1: it does not answer
  bool has_left = false;
  std::string text;  ///< of the call asked for; "" if it is not known

  static Report parse(const std::string& text);
};

/// Why a world fails.
struct Cause {
  std::string text;           ///< "": it does not
  int culprit = -1;           ///< the rank of the world that began it; negative: this one
  bool is_published = false;  ///< by another rank
};

/// Why `call` has not finished after `waited_ms`, according to the ranks' reports: which rank is
/// missing, else which rank called something else, else neither. Of a message, which has no number,
/// it is the other rank that is missing.
Cause explain_time_out(const Progress& progress, const NumberedCall& call, int64_t waited_ms,
                       const std::vector<Report>& reports);

}  // namespace tessera::internal::nccl

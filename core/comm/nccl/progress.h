#pragma once

#include <array>
#include <cstdint>
#include <mutex>
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
  std::string place;  ///< of its tensors in windows; "" where there is none

  static NumberedCall of(const Collective& collective);
  static NumberedCall of(Op op, std::string_view tag = {});

  /// "all_reduce SUM float32[1024] 'bucket 3'", and the place.
  std::string text() const { return describe(signature, tag) + place; }
};

/// What this rank has called on one group: how many collectives, and which were the last ones.
/// Ranks exchange it after a time-out. Thread-safe.
class Progress {
 public:
  /// `world_ranks`: of the group's ranks, in order.
  Progress(std::string group, std::vector<int> world_ranks);

  const std::string& group() const { return group_; }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  /// "rank 1", and its number in the world where that is another one.
  std::string name_of(int rank) const;

  /// Numbers the call.
  void begin(NumberedCall& call);
  void leave();

  /// For the table: how many calls this rank has begun, whether it has left, and what it called as
  /// number `sequence`.
  std::string report(int64_t sequence) const;

 private:
  static constexpr size_t kKept = 64;

  const std::string group_;
  const std::vector<int> world_ranks_;
  mutable std::mutex mutex_;
  int64_t begun_ = 0;
  bool left_ = false;
  std::array<NumberedCall, kKept> last_;
};

/// One rank's answer, read back.
struct Report {
  enum class State : uint8_t { kSilent, kWithoutGroup, kIn, kLeft };
  State state = State::kSilent;
  int64_t begun = 0;
  std::string text;  ///< of the call asked for; "" if it has not begun it

  static Report parse(const std::string& text);
};

/// Why `call` has not finished after `waited_ms`, according to the ranks' reports: which rank is
/// missing, else which rank called something else, else neither.
std::string explain_time_out(const Progress& progress, int64_t sequence, int64_t waited_ms,
                             const std::vector<Report>& reports);

/// The same for a message, which is not numbered: its other rank, and what is known of that.
std::string explain_late_message(const Progress& progress, const NumberedCall& call,
                                 int64_t waited_ms, const std::vector<Report>& reports);

}  // namespace tessera::internal::nccl

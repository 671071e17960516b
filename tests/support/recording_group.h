#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/process_group.h"

namespace tessera::internal::testing {

/// One call of a collective.
struct RecordedCall {
  std::string op;  ///< "all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier",
                   ///< "window", "read"
  std::string tag;
  std::string group;  ///< name of the group it ran on
  /// Of the whole tensor: reduce_scatter's input, all_gather's output, or the read memory.
  int64_t tensor_bytes = 0;
  double sent_bytes = 0;  ///< by this rank, by the textbook formula of a ring
};

/// The calls of one rank, on a recording group and all its subgroups, in order. Thread-safe.
class Recording {
 public:
  void add(RecordedCall call);
  std::vector<RecordedCall> calls() const;
  void clear();
  /// Sums over the calls of `op` ("": all calls).
  double sent_bytes(std::string_view op = {}) const;
  int64_t count(std::string_view op = {}) const;
  /// One line per call, "op tag bytes", for comparing orders in tests.
  std::vector<std::string> lines() const;

  /// Makes call number `number` from now on (0 is the next) throw instead of running: on this rank,
  /// before anything is sent.
  void fail_call(int64_t number);
  /// Counts a call. Throws std::runtime_error "recording group: call <n> (<op> '<tag>') was made to
  /// fail" if it is the one to fail.
  void maybe_fail(std::string_view op, std::string_view tag);

 private:
  mutable std::mutex mutex_;
  std::vector<RecordedCall> calls_;
  int64_t until_failure_ = -1;
};

/// Forwards all calls to another group and records them. Sent bytes: all_reduce 2 (N-1)/N S,
/// reduce_scatter and all_gather (N-1)/N S, broadcast S from the root, barrier 0, make_window
/// ("window") 0, read of another rank's buffer S, the bytes that rank sends.
class RecordingGroup final : public ForwardingGroup {
 public:
  RecordingGroup(std::shared_ptr<ProcessGroup> inner, std::shared_ptr<Recording> recording);

  std::shared_ptr<Work> run(const Collective& collective) override;
  /// Reads are recorded too, even after the group was destroyed.
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override;
  const std::shared_ptr<Recording>& recording() const { return recording_; }

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override;

 private:
  void record(std::string_view op, std::string_view tag, int64_t tensor_bytes, double factor);

  std::shared_ptr<Recording> recording_;
};

}  // namespace tessera::internal::testing

#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/collective.h"
#include "tessera/core/comm/groups/call_record.h"

namespace tessera::internal {

/// One recorded call of a rank. Plain bytes. Times are nanoseconds of CLOCK_REALTIME.
struct FlightRecord {
  int64_t sequence = -1;  ///< -1: a message, or a call without a number
  int64_t begin_ns = 0;
  int64_t end_ns = 0;  ///< 0: not over
  CallSignature signature;
  CallTag<64> tag;
  CallTag<48> group;

  /// Returns true if the call's group has this name.
  bool is_of(std::string_view name) const { return group.hash == hash_of_tag(name); }
  /// Returns a description such as "#8 all_reduce SUM float32[10] 'bucket 7' on group 'world'".
  std::string text() const;
};
static_assert(std::is_trivially_copyable_v<FlightRecord>);
static_assert(sizeof(FlightRecord) % sizeof(uint64_t) == 0);

/// The last calls of one rank. Lies in memory that the rank's peers may map, so that they can read
/// it even if the rank is stopped or gone; so it holds no pointers. Any thread of the rank may
/// write; any process may read at any time. Recording a call allocates nothing and takes no lock.
class FlightRing {
 public:
  static constexpr uint64_t kRecords = 128;

  /// Records that a call begins now. Returns its number, for end().
  uint64_t begin(const CallSignature& signature, int64_t sequence, std::string_view tag,
                 std::string_view group);
  /// Records that call `number` is over now. No effect if the ring no longer holds the call.
  void end(uint64_t number);

  /// Returns how many calls have begun.
  uint64_t begun() const { return begun_.load(std::memory_order_acquire); }
  /// Returns the last calls, the oldest first. Leaves out calls that are being written, and calls
  /// whose thread was delayed in begin() while other threads made kRecords calls.
  std::vector<FlightRecord> last() const;

 private:
  static constexpr size_t kWords = sizeof(FlightRecord) / sizeof(uint64_t);
  using Words = std::array<uint64_t, kWords>;
  static constexpr uint64_t kWritten = ~uint64_t{0};  // the version while a thread writes the slot
  struct Slot {
    std::atomic<uint64_t> version;  // the call's number plus one, or kWritten; 0: never used
    std::atomic<uint64_t> words[kWords];
  };

  bool read(uint64_t number, FlightRecord& record) const;

  alignas(64) std::atomic<uint64_t> begun_;
  Slot slots_[kRecords];
};

/// Records one call in a FlightRing: its begin in the constructor, its end in end(). Does nothing
/// without a ring.
class Flight {
 public:
  Flight() = default;
  Flight(std::shared_ptr<FlightRing> ring, const CallSignature& signature, int64_t sequence,
         std::string_view tag, std::string_view group)
      : ring_(std::move(ring)) {
    if (ring_ != nullptr) number_ = ring_->begin(signature, sequence, tag, group);
  }

  bool is_recorded() const { return ring_ != nullptr; }
  void end() {
    if (ring_ != nullptr) ring_->end(number_);
  }

 private:
  std::shared_ptr<FlightRing> ring_;
  uint64_t number_ = 0;
};

/// Returns the current time in nanoseconds of CLOCK_REALTIME.
int64_t flight_time_ns();

/// The last calls of one rank, and the state of its process.
struct RankFlight {
  int rank = 0;
  int pid = 0;             ///< 0: unknown
  std::string host = {};   ///< "": this host, or unknown
  std::string state = {};  ///< "runs (sleeps)", "is stopped (SIGSTOP or a debugger)", "is gone"
  uint64_t begun = 0;
  std::vector<FlightRecord> records = {};  ///< the oldest first
};

/// Returns the state of a process, such as "runs (computes)", "runs (sleeps)", "is stopped (SIGSTOP
/// or a debugger)" or "is gone". For this process, returns "is a thread of this process".
std::string process_state(int pid);

/// Returns one text for all ranks: the cause, then each rank's last calls. `now_ns`: the time of
/// writing.
std::string merged_text(const std::vector<RankFlight>& ranks, std::string_view cause,
                        int64_t now_ns);

/// Returns the directory that TESSERA_FLIGHT_DUMP names; "" if no dump is to be written.
std::string flight_dump_directory();

/// Local. Writes merged_text() to <name>-<rank>-<pid>.txt in `directory`, which is created if it is
/// missing, and reports the path on stderr. Does nothing if `directory` is empty. Never throws;
/// errors go to stderr.
void write_flight_dump(const std::string& directory, int rank, const std::vector<RankFlight>& ranks,
                       std::string_view cause, std::string_view name = "flight-rank") noexcept;

/// Describes a long wait: "<call>: <waiter> has waited 30001 ms for rank 2 (pid 812), which
/// <state>, last seen in <call>, over 30.2 s ago; and for ...".
std::string wait_report(std::string_view call, std::string_view waiter,
                        std::chrono::milliseconds waited, const std::vector<RankFlight>& missing);

}  // namespace tessera::internal

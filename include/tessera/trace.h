#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera {

/// What a span of a trace was spent on; viewers show the tracks in this order.
enum class TraceTrack : uint8_t { kCompute, kGather, kReduce, kOptimizer, kVote };

/// Returns "compute", "gather", ...
std::string_view to_string(TraceTrack track);

/// Spans of time of one rank, kept in memory until they are asked for. Safe to use from several
/// threads. Memory grows in blocks of 128 KiB, so that an unused trace costs nothing; recording
/// costs a clock read at each end, one uncontended lock and 32 bytes.
class Trace {
 public:
  /// A span as it was recorded.
  struct Span {
    TraceTrack track;
    std::string_view name;  ///< valid as long as the trace lives
    int64_t begin_ns;
    int64_t end_ns;
    int64_t bytes;
  };

  /// Keeps the first `capacity` spans (default 2^20: at most 32 MiB) and counts the others.
  explicit Trace(size_t capacity = size_t{1} << 20);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Keeps a span of [begin_ns, end_ns], times of now_ns(); an end before the begin counts as equal
  /// to it. `bytes` is the number of bytes moved, or 0 if that has no meaning. Every distinct name
  /// is copied once and cut after 255 bytes. If there is no memory for a span, it is counted as
  /// dropped.
  void record(TraceTrack track, std::string_view name, int64_t begin_ns, int64_t end_ns,
              int64_t bytes = 0) noexcept;

  /// Returns the time of CLOCK_MONOTONIC, which is comparable between the processes of a host.
  static int64_t now_ns();

  /// Returns the spans so far, in the order in which they were recorded, that is, by their ends.
  std::vector<Span> spans() const;

  /// Returns the number of spans that were not kept.
  int64_t dropped() const;

 private:
  struct Slot;
  static constexpr size_t kBlockSlots = 4096;

  uint32_t intern(std::string_view name);

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Slot[]>> blocks_;
  size_t kept_ = 0;
  int64_t dropped_ = 0;
  std::deque<std::string> names_;  // spans point to these names; a deque never moves its elements
  std::unordered_map<std::string_view, uint32_t> number_of_name_;
};

/// Returns the content of a trace file for one rank, to be opened in ui.perfetto.dev or
/// chrome://tracing. Times count from the first span.
std::string to_chrome_json(const Trace& trace, int rank);

}  // namespace tessera

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

/// What a span of a trace was spent on; in this order from top to bottom in a viewer.
enum class TraceTrack : uint8_t { kCompute, kGather, kReduce, kOptimizer, kVote };

/// "compute", "gather", ...
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
  /// to it. `bytes` is what was moved, 0 if that has no meaning. Every distinct name is copied once
  /// and cut after 255 bytes. A span for which there is no memory is counted as dropped.
  void record(TraceTrack track, std::string_view name, int64_t begin_ns, int64_t end_ns,
              int64_t bytes = 0) noexcept;

  /// CLOCK_MONOTONIC, comparable between the processes of a host.
  static int64_t now_ns();

  /// The spans so far, in the order in which they were recorded, that is, by their ends.
  std::vector<Span> spans() const;

  /// Spans that were not kept.
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
  std::deque<std::string> names_;  // a deque never moves its elements
  std::unordered_map<std::string_view, uint32_t> number_of_name_;
};

/// Records what a thread computes between the things that an engine does: one span after the other
/// without gaps. Does nothing with a null trace.
class ComputeSpans {
 public:
  explicit ComputeSpans(Trace* trace) : trace_(trace) { begin(); }
  /// What comes now is the next span.
  void begin() {
    if (trace_ != nullptr) begin_ns_ = Trace::now_ns();
  }
  /// The span that is over was `name`; the next one begins.
  void end(std::string_view name) {
    if (trace_ == nullptr) return;
    const int64_t now_ns = Trace::now_ns();
    trace_->record(TraceTrack::kCompute, name, begin_ns_, now_ns);
    begin_ns_ = now_ns;
  }

 private:
  Trace* trace_;
  int64_t begin_ns_ = 0;
};

/// Records a span from its construction to its destruction. A null trace costs one branch at each
/// end. `name` must outlive the span.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, TraceTrack track, std::string_view name, int64_t bytes = 0)
      : trace_(trace), track_(track), name_(name), bytes_(bytes) {
    if (trace_ != nullptr) begin_ns_ = Trace::now_ns();
  }
  ~TraceSpan() {
    if (trace_ != nullptr) trace_->record(track_, name_, begin_ns_, Trace::now_ns(), bytes_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* trace_;
  TraceTrack track_;
  std::string_view name_;
  int64_t bytes_;
  int64_t begin_ns_ = 0;
};

/// The events of one rank in Chrome's trace format, piece by piece: JSON objects separated by
/// commas, without the brackets around them, so that the events of several ranks fit into one file.
/// The process is the rank, the threads are the tracks; spans of a track that overlap without one
/// holding the other come to stand in further rows of it ("gather 2"), because a viewer drops them
/// otherwise.
class ChromeEvents {
 public:
  /// Takes the spans that `trace` has now (48 bytes each, sorted). The trace must outlive this.
  ChromeEvents(const Trace& trace, int rank);

  /// Begin of the earliest span, INT64_MAX if there is none.
  int64_t first_ns() const;

  /// The next events with times in microseconds since `origin_ns`, at least one and at most about
  /// `bytes` of them; empty when there are no more.
  std::string next(int64_t origin_ns, size_t bytes);

 private:
  struct Row {
    TraceTrack track;
    int number;  // within the track, from 0
  };

  void place();
  void append_metadata(std::string& out) const;
  void append_span(std::string& out, size_t index, int64_t origin_ns) const;

  int rank_;
  int64_t dropped_;
  std::vector<Trace::Span> spans_;  // by begin, the longer first
  std::vector<Row> rows_;           // by track; the thread's id is the place here plus one
  std::vector<uint32_t> row_of_;    // by span
  size_t next_ = 0;
  bool named_ = false;
};

/// A whole file for one rank, to be opened in ui.perfetto.dev or chrome://tracing; its times begin
/// with the first span.
std::string to_chrome_json(const Trace& trace, int rank);

/// What stands before and after the events of a file.
inline constexpr std::string_view kChromeTraceHead =
    "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
inline constexpr std::string_view kChromeTraceTail = "\n]}\n";

}  // namespace tessera

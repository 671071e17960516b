#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/trace.h"

namespace tessera::internal {

/// The events of one rank in Chrome's trace format, produced piece by piece: JSON objects separated
/// by commas, without brackets around them, so that the events of several ranks fit into one file.
/// In the trace, the rank appears as a process and its tracks as the threads. If two spans of a
/// track overlap and neither contains the other, one of them goes into another row ("gather 2"),
/// because viewers drop such a span.
class ChromeEvents {
 public:
  /// Copies the present spans of `trace` (48 bytes each, sorted). The trace must outlive the
  /// object.
  ChromeEvents(const Trace& trace, int rank);

  /// Returns the begin of the earliest span; INT64_MAX if there is none.
  int64_t first_ns() const;

  /// Returns the next events with times in microseconds since `origin_ns`: at least one, and at
  /// most about `bytes` bytes. Empty if there are no more.
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
  std::vector<Trace::Span> spans_;  // sorted by track, then by begin, then the longer first
  std::vector<Row> rows_;           // grouped by track; a row's thread id is its index plus one
  std::vector<uint32_t> row_of_;    // each span's index in rows_
  size_t next_ = 0;
  bool named_ = false;
};

/// The text before and after the events of a file.
inline constexpr std::string_view kChromeTraceHead =
    "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
inline constexpr std::string_view kChromeTraceTail = "\n]}\n";

}  // namespace tessera::internal

#include "tessera/trace.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <limits>
#include <new>
#include <tuple>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "tessera/core/sched/chrome_events.h"

namespace tessera {
using namespace internal;

namespace {

constexpr size_t kMaxSpanName = 255;

/// Appends `ns` in microseconds with three decimal places, so that nothing is rounded.
void append_microseconds(std::string& out, int64_t ns) {
  const char* sign = ns < 0 ? "-" : "";
  const uint64_t size =
      ns < 0 ? uint64_t{0} - static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  char digits[4];
  std::snprintf(digits, sizeof digits, "%03u", static_cast<unsigned>(size % 1000));
  absl::StrAppend(&out, sign, size / 1000, ".", digits);
}

void append_metadata_head(std::string& out, const char* kind, int rank) {
  absl::StrAppend(&out, "{\"ph\":\"M\",\"name\":\"", kind, "\",\"pid\":", rank);
}

}  // namespace

std::string_view to_string(TraceTrack track) {
  switch (track) {
    case TraceTrack::kCompute:
      return "compute";
    case TraceTrack::kGather:
      return "gather";
    case TraceTrack::kReduce:
      return "reduce";
    case TraceTrack::kOptimizer:
      return "optimizer";
    case TraceTrack::kVote:
      return "vote";
  }
  TORCH_CHECK(false, "[trace] track: got ", static_cast<int>(track));
}

struct Trace::Slot {
  int64_t begin_ns;
  int64_t end_ns;
  int64_t bytes;
  uint32_t name;
  TraceTrack track;
};

Trace::Trace(size_t capacity) : capacity_(capacity) {}
Trace::~Trace() = default;

int64_t Trace::now_ns() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void Trace::record(TraceTrack track, std::string_view name, int64_t begin_ns, int64_t end_ns,
                   int64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    if (kept_ == capacity_) {
      ++dropped_;
      return;
    }
    if (kept_ == blocks_.size() * kBlockSlots) {
      // Zeroed, so that its pages are resident when spans are recorded.
      blocks_.push_back(std::make_unique<Slot[]>(std::min(kBlockSlots, capacity_ - kept_)));
    }
    const uint32_t number = intern(name.substr(0, kMaxSpanName));
    blocks_.back()[kept_ % kBlockSlots] = {.begin_ns = begin_ns,
                                           .end_ns = std::max(begin_ns, end_ns),
                                           .bytes = bytes,
                                           .name = number,
                                           .track = track};
    ++kept_;
  } catch (const std::bad_alloc&) {
    ++dropped_;
  }
}

uint32_t Trace::intern(std::string_view name) {
  const auto found = number_of_name_.find(name);
  if (found != number_of_name_.end()) return found->second;
  const auto number = static_cast<uint32_t>(names_.size());
  names_.emplace_back(name);
  number_of_name_.emplace(names_.back(), number);
  return number;
}

std::vector<Trace::Span> Trace::spans() const {
  const std::lock_guard lock(mutex_);
  std::vector<Span> spans;
  spans.reserve(kept_);
  for (size_t i = 0; i < kept_; ++i) {
    const Slot& slot = blocks_[i / kBlockSlots][i % kBlockSlots];
    spans.push_back({.track = slot.track,
                     .name = names_[slot.name],
                     .begin_ns = slot.begin_ns,
                     .end_ns = slot.end_ns,
                     .bytes = slot.bytes});
  }
  return spans;
}

int64_t Trace::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

ChromeEvents::ChromeEvents(const Trace& trace, int rank)
    : rank_(rank), dropped_(trace.dropped()), spans_(trace.spans()) {
  // Spans are recorded when they end, so of two spans with equal times the one recorded later is
  // the outer one.
  std::reverse(spans_.begin(), spans_.end());
  std::stable_sort(spans_.begin(), spans_.end(), [](const Trace::Span& a, const Trace::Span& b) {
    return std::tie(a.track, a.begin_ns, b.end_ns) < std::tie(b.track, b.begin_ns, a.end_ns);
  });
  place();
}

void ChromeEvents::place() {
  row_of_.reserve(spans_.size());
  std::vector<std::vector<int64_t>> open;  // ends of open spans, for each row of the track
  size_t first_row = 0;
  for (size_t i = 0; i < spans_.size(); ++i) {
    const Trace::Span& span = spans_[i];
    if (i == 0 || spans_[i - 1].track != span.track) {
      open.clear();
      first_row = rows_.size();
    }
    size_t row = 0;
    for (; row < open.size(); ++row) {
      std::vector<int64_t>& ends = open[row];
      while (!ends.empty() && ends.back() <= span.begin_ns) ends.pop_back();
      if (ends.empty() || span.end_ns <= ends.back()) break;
    }
    if (row == open.size()) {
      rows_.push_back({.track = span.track, .number = static_cast<int>(row)});
      open.emplace_back();
    }
    open[row].push_back(span.end_ns);
    row_of_.push_back(static_cast<uint32_t>(first_row + row));
  }
}

int64_t ChromeEvents::first_ns() const {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const Trace::Span& span : spans_) first = std::min(first, span.begin_ns);
  return first;
}

void ChromeEvents::append_metadata(std::string& out) const {
  append_metadata_head(out, "process_name", rank_);
  absl::StrAppend(&out, ",\"args\":{\"name\":\"rank ", rank_, "\"}},\n");
  append_metadata_head(out, "process_sort_index", rank_);
  absl::StrAppend(&out, ",\"args\":{\"sort_index\":", rank_, "}}");
  if (dropped_ > 0) {
    out += ",\n";
    append_metadata_head(out, "process_labels", rank_);
    absl::StrAppend(&out, ",\"args\":{\"labels\":\"", dropped_, " later spans dropped\"}}");
  }
  for (size_t row = 0; row < rows_.size(); ++row) {
    out += ",\n";
    append_metadata_head(out, "thread_name", rank_);
    absl::StrAppend(&out, ",\"tid\":", row + 1, ",\"args\":{\"name\":\"");
    out += to_string(rows_[row].track);
    if (rows_[row].number > 0) absl::StrAppend(&out, " ", rows_[row].number + 1);
    out += "\"}},\n";
    append_metadata_head(out, "thread_sort_index", rank_);
    absl::StrAppend(&out, ",\"tid\":", row + 1, ",\"args\":{\"sort_index\":", row + 1, "}}");
  }
}

void ChromeEvents::append_span(std::string& out, size_t index, int64_t origin_ns) const {
  const Trace::Span& span = spans_[index];
  out += "{\"ph\":\"X\",\"name\":";
  // Names are cut at a byte limit, so one may end inside a character.
  out += nlohmann::json(span.name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  out += ",\"cat\":\"";
  out += to_string(span.track);
  absl::StrAppend(&out, "\",\"pid\":", rank_, ",\"tid\":", row_of_[index] + 1, ",\"ts\":");
  append_microseconds(out, span.begin_ns - origin_ns);
  out += ",\"dur\":";
  append_microseconds(out, span.end_ns - span.begin_ns);
  if (span.bytes != 0) absl::StrAppend(&out, ",\"args\":{\"bytes\":", span.bytes, "}");
  out += '}';
}

std::string ChromeEvents::next(int64_t origin_ns, size_t bytes) {
  std::string out;
  if (!named_) {
    append_metadata(out);
    named_ = true;
  }
  while (next_ < spans_.size() && (out.empty() || out.size() < bytes)) {
    if (!out.empty()) out += ",\n";
    append_span(out, next_++, origin_ns);
  }
  return out;
}

std::string to_chrome_json(const Trace& trace, int rank) {
  ChromeEvents events(trace, rank);
  std::string out(kChromeTraceHead);
  out += events.next(events.first_ns(), std::numeric_limits<size_t>::max());
  out += kChromeTraceTail;
  return out;
}

}  // namespace tessera

#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/trace.h"

namespace tessera::internal {

/// Records the computation of a thread as spans. Each span begins where the last one ended, or at
/// the last call of begin(). Does nothing with a null trace.
class ComputeSpans {
 public:
  explicit ComputeSpans(Trace* trace) : trace_(trace) { begin(); }
  /// Begins a span now. The time since the last end() is not recorded.
  void begin() {
    if (trace_ != nullptr) begin_ns_ = Trace::now_ns();
  }
  /// Ends the span, named `name`, and begins the next one.
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

}  // namespace tessera::internal

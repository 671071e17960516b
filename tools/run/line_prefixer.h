#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/tools/run/sink.h"

namespace tessera::internal {

/// Cuts a stream of bytes into lines and puts a prefix before each, so that lines of several
/// workers never mix. A '\r', as of a progress bar, ends a line that the next one overwrites on a
/// terminal. Local, never blocks, knows no clock. A sink knows it by its address.
class LinePrefixer {
 public:
  using Clock = std::chrono::steady_clock;

  /// A line without an end is held back up to this size, then cut into lines of it.
  static constexpr size_t kMaxLine_bytes = 64 * 1024;
  /// A line without an end, such as a prompt, is held back this long.
  static constexpr std::chrono::milliseconds kPatience{250};

  explicit LinePrefixer(std::string prefix);

  /// Appends every line that `bytes`, which came at `now`, complete to `out`, prefixed; keeps the
  /// rest.
  void add(std::string_view bytes, Clock::time_point now, Sink& out);

  /// When the text that is kept should be shown; nothing if there is none.
  std::optional<Clock::time_point> due() const;
  /// Appends the text that is kept, prefixed, if it is due by `now`. What completes its line
  /// follows without a prefix, unless another writer has appended to `out` meanwhile.
  void show_due(Clock::time_point now, Sink& out);

  /// Appends the last line, if it was left without an end, and ends it. May be called again.
  void finish(Sink& out);

 private:
  void append(std::string_view end, Sink& out);

  std::string prefix_;
  std::string kept_;  // text that the sink does not have yet
  Clock::time_point kept_since_;
  bool is_begun_ = false;  // the sink has the line, as far as it is not kept, and no '\n' of it
  bool is_overwritten_ = false;      // by the next text: a '\r' came last
  bool begins_with_return_ = false;  // a '\r' came before any text of the line, and is kept, too
};

}  // namespace tessera::internal

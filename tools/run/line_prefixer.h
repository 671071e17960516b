#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/tools/run/sink.h"

namespace tessera::internal {

/// Cuts a stream of bytes into lines and puts a prefix before each, so that lines of different
/// workers never mix. A '\r', as in a progress bar, ends a line that the next one overwrites on a
/// terminal. Local, never blocks, reads no clock. A sink identifies the prefixer by its address.
class LinePrefixer {
 public:
  using Clock = std::chrono::steady_clock;

  /// An unfinished line is held back up to this size, then shown in pieces of this size.
  static constexpr size_t kMaxLine_bytes = 64 * 1024;
  /// An unfinished line, such as a prompt, is held back this long.
  static constexpr std::chrono::milliseconds kPatience{250};

  explicit LinePrefixer(std::string prefix);

  /// Takes `bytes`, which came at `now`. Appends every completed line to `out`, with the prefix,
  /// and keeps the rest.
  void add(std::string_view bytes, Clock::time_point now, Sink& out);

  /// Returns when the kept text should be shown; nullopt if there is none.
  std::optional<Clock::time_point> due() const;
  /// Appends the kept text, with the prefix, if it is due by `now`. The rest of its line then
  /// follows without a prefix, unless another writer has appended to `out` meanwhile.
  void show_due(Clock::time_point now, Sink& out);

  /// Appends the last line, if it is unfinished, and ends it. May be called again.
  void finish(Sink& out);

 private:
  void append(std::string_view end, Sink& out);

  std::string prefix_;
  std::string kept_;  // text that the sink does not have yet
  Clock::time_point kept_since_;
  // The sink has the line's text except for kept_, and not its '\n'.
  bool is_begun_ = false;
  bool is_overwritten_ = false;      // the next text overwrites the line, because a '\r' came last
  bool begins_with_return_ = false;  // a '\r' came before any text of the line; it is kept, too
};

}  // namespace tessera::internal

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::internal {

/// Cuts a stream of bytes into lines and puts a prefix before each, so that lines of several
/// workers never mix. Local, never blocks, no input or output of its own.
class LinePrefixer {
 public:
  /// A line without an end is held back up to this size, then cut into lines of it.
  static constexpr size_t kMaxLine_bytes = 64 * 1024;

  explicit LinePrefixer(std::string prefix);

  /// Appends every line that `bytes` completes to `out`, prefixed; keeps the rest.
  void add(std::string_view bytes, std::string& out);

  /// Appends the last line, if it was left without an end, and ends it. May be called again.
  void finish(std::string& out);

 private:
  std::string prefix_;
  std::string partial_;
};

}  // namespace tessera::internal

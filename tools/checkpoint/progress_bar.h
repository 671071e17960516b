#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace tessera::internal {

/// Shows on a terminal how much of a long task is done, in one line that is redrawn, and erased at
/// the end. Prints nothing elsewhere.
class ProgressBar {
 public:
  /// `out` is stderr, except in tests.
  ProgressBar(std::string what, int64_t total_bytes, std::FILE* out = stderr);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void add(int64_t bytes);

  /// Returns the line to show after `done` bytes. A longer line than `columns` characters would
  /// wrap, so only its end is returned.
  std::string line(int64_t done, size_t columns) const;

 private:
  using Clock = std::chrono::steady_clock;

  const std::string what_;
  const int64_t total_;
  std::FILE* const out_;
  const bool is_terminal_;
  int64_t done_ = 0;
  Clock::time_point drawn_;
  bool is_drawn_ = false;
};

}  // namespace tessera::internal

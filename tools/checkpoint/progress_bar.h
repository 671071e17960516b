#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace tessera::internal {

/// Shows the progress of a long operation on a terminal, in one line that is redrawn and erased at
/// the end. Without a terminal it prints nothing.
class ProgressBar {
 public:
  /// `out` is stderr except in tests.
  ProgressBar(std::string what, int64_t total_bytes, std::FILE* out = stderr);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void add(int64_t bytes);

  /// The line at `done` bytes: its last `columns` characters, because a wrapped line could not be
  /// redrawn.
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

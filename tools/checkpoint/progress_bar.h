#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace tessera::internal {

/// Says on a terminal how much of a long work is done, in one line that is drawn again and gone at
/// the end. Elsewhere it says nothing.
class ProgressBar {
 public:
  /// `out` is stderr, but for tests.
  ProgressBar(std::string what, int64_t total_bytes, std::FILE* out = stderr);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void add(int64_t bytes);

  /// What the line says at `done` bytes: the last `columns` of it, as a line that wraps could not
  /// be drawn again.
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

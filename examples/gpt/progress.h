#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace gpt {

/// The contents of one line of progress.
struct ProgressLine {
  int64_t step = 0;  ///< steps done
  int64_t steps = 0;
  double loss = 0.0;          ///< nats per byte, mean over ranks
  double rate = 0.0;          ///< learning rate
  double tokens_per_s = 0.0;  ///< of all ranks together
  int64_t pss_bytes = -1;     ///< memory of this rank; -1 where unknown
  double left_s = 0.0;

  /// One line without its end, short enough for a terminal of 80 columns.
  std::string text() const;
};

/// Reports how training goes: on a terminal in one line that is redrawn, elsewhere in a line every
/// `log_every` steps and at the first and last step. For one rank; local.
class Progress {
 public:
  enum class Display { kLines, kTerminal };

  struct Options {
    int64_t steps = 1;
    int64_t steps_done = 0;       ///< before this run was resumed
    int64_t tokens_per_step = 1;  ///< of all ranks together
    int64_t log_every = 10;
  };

  Progress(std::FILE* out, Display display, const Options& options);

  /// Returns the display that suits `out`.
  static Display display_of(std::FILE* out);

  /// Reports that step number `step`, counted from 1, is done. Steps may be left out; the next
  /// report then counts their mean duration.
  void report(int64_t step, double loss, double rate);

  /// Ends a line that is being redrawn, so that other output starts on a new line. The time until
  /// resume() does not count as training.
  void pause();
  void resume();

 private:
  using Clock = std::chrono::steady_clock;

  bool is_due(int64_t step) const;

  std::FILE* out_;
  Display display_;
  Options options_;
  Clock::time_point last_step_;
  Clock::time_point last_draw_;
  int64_t steps_done_ = 0;
  double step_s_ = 0.0;  // smoothed
  bool is_line_open_ = false;
};

}  // namespace gpt

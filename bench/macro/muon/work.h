#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/strategy.h"

namespace bench {

/// Work that is repeated and timed: updates by Muon, or what they are compared with.
class Work {
 public:
  struct Times {
    double us = 0;             ///< duration of the timed part
    double transforms_us = 0;  ///< time for the whole matrices that this rank owns
  };

  Work() = default;
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  virtual Times run() = 0;
  /// The average distance of values from their start; 0 if there are no values.
  virtual double moved() const { return 0; }
};

/// Returns work on the fp32 matrices of two blocks of a GPT of `width`. `by` chooses it:
/// - "tessera": an engine's update of the matrices by Muon, timed by its trace, under `strategy` on
///   the ranks of the job;
/// - "iterations": the least that Muon must compute for this update, the Newton-Schulz iterations
///   of all matrices, in this process;
/// - "products": products of two square matrices of twice the width, in this process.
/// Throws program::UsageError for other names.
std::unique_ptr<Work> make_work(const std::string& by, tessera::Strategy strategy, int64_t width);

/// Throws program::UsageError unless make_work() accepts `by`.
void require_kind_of_work(const std::string& by);

}  // namespace bench

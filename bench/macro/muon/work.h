#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/strategy.h"

namespace bench {

/// What is repeated and timed beside updates by Muon.
class Work {
 public:
  struct Times {
    double us = 0;             ///< of what is timed
    double transforms_us = 0;  ///< of it, what this rank spent on whole matrices that it owns
  };

  Work() = default;
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  virtual Times run() = 0;
  /// How far values have moved from where they began, on average; 0 where there are none.
  virtual double moved() const { return 0; }
};

/// Over the matrices of two blocks of a GPT of `width`, fp32. `by`: "tessera", an engine's update
/// of them by Muon, as its trace says, under `strategy` on the ranks of the job; "iterations", what
/// Muon computes in that at least, the Newton-Schulz iterations of all of them in this process;
/// "products", products of two square matrices of twice the width, by this process alone. Throws
/// program::UsageError for other names.
std::unique_ptr<Work> make_work(const std::string& by, tessera::Strategy strategy, int64_t width);

/// Throws program::UsageError unless make_work() takes it.
void require_kind_of_work(const std::string& by);

}  // namespace bench

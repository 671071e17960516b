#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// What step() does when a gradient is NaN or infinite on any rank. One decision for all ranks.
enum class NonFinite : uint8_t {
  kStop,  ///< throw c10::Error on every rank; nothing is applied
  kSkip,  ///< drop the gradients, apply nothing; StepResult::committed is false
};

/// What a rank found.
struct NonFiniteGradient {
  static constexpr int kAllRanks = -1;

  int rank;               ///< kAllRanks: `elements` is their sum, as asynchronous steps know it
  std::string parameter;  ///< the first one on that rank; "" if only the mean over ranks is not
                          ///< finite
  int64_t elements;
};

/// Equal on all ranks, by rank.
struct NonFiniteReport {
  int64_t step = 0;         ///< the step that was about to be made
  double loss_scale = 1.0;  ///< in force
  std::vector<NonFiniteGradient> gradients;
};

}  // namespace tessera

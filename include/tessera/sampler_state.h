#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace tessera::data {

/// How far all ranks together have come in a run over a data set. It contains neither a rank nor
/// the number of ranks, so it is equal on all ranks and fits any world.
struct SamplerState {
  int64_t size = 0;     ///< samples in the data set
  int64_t seed = 0;     ///< seed and epoch determine the order
  bool shuffle = true;  ///< false: the order is 0, 1, 2, ...
  int64_t epoch = 0;
  /// The first `cursor` samples of the epoch's order have been consumed; once the epoch is
  /// finished, `cursor` is `size`.
  int64_t cursor = 0;

  /// Returns the state as named numbers, for checkpoints: "version", "size", "seed", "shuffle",
  /// "epoch", "cursor".
  std::map<std::string, int64_t> numbers() const;
  /// Returns the state with these numbers. Throws c10::Error that names what is missing, unknown or
  /// out of range.
  static SamplerState from_numbers(const std::map<std::string, int64_t>& numbers);

  friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

}  // namespace tessera::data

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/parameter_table.h"

namespace tessera::internal {

/// What the engine itself counts. Equal on all ranks.
struct EngineCounters {
  int64_t steps = 0;          ///< updates applied
  double loss_scale = 1.0;    ///< without a scaler neither read nor written, as good_steps
  int64_t good_steps = 0;     ///< steps without overflow since the scale last changed
  bool has_scaler = false;    ///< Options::loss_scale is set
  int64_t averaged = 0;       ///< FlatAverage::updates(); without an average as the scaler's
  bool has_average = false;   ///< Options::average is set
  int64_t micro_batches = 0;  ///< of all ranks, so far
  bool counts_micro_batches = false;  ///< they are in the state: Reproducible::kAnyWorldSize
};

/// The name of EngineCounters::averaged in a state. An engine has it if it keeps an average.
inline constexpr const char* kAveragedUpdates = "engine.averaged_updates";

/// One entry of a state that is a single number.
struct StateNumber {
  std::string name;
  at::ScalarType dtype;   ///< Long or Double
  int64_t bits;           ///< its value's
  bool may_lack = false;  ///< a state without it can be loaded: earlier versions did not save it
  std::optional<size_t> parameter = {};  ///< of the table, whose it is
  std::optional<size_t> group = {};      ///< of the optimizer, whose it is
};

/// The numbers of a run in a fixed order, equal on all ranks: the engine's, each trainable
/// parameter's step count, each group's algorithm (in the entry's name), the hyper-parameters.
/// Local.
std::vector<StateNumber> read_numbers(const ParameterTable& table, const FlatOptimizer& optimizer,
                                      const EngineCounters& counters);

/// What forbids write_numbers(numbers), one line each "<name>: got X, expected Y"; empty if
/// nothing. Local.
std::vector<std::string> problems_of(const std::vector<StateNumber>& numbers,
                                     const FlatOptimizer& optimizer);

/// Whether an entry of this name says which algorithm a group has.
bool names_algorithm(const std::string& name);

/// "'<name>': got an entry that this run does not have", and the remedy where another algorithm's
/// state is why.
std::string unknown_entry(const std::string& name);

/// The other way round: `numbers` are what read_numbers() made, with other values. Local.
void write_numbers(const std::vector<StateNumber>& numbers, const ParameterTable& table,
                   FlatOptimizer& optimizer, EngineCounters& counters);

}  // namespace tessera::internal

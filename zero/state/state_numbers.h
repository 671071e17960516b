#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/parameter_table.h"

namespace tessera::internal {

/// The engine's own counters. Equal on all ranks.
struct EngineCounters {
  int64_t steps = 0;          ///< updates applied
  double loss_scale = 1.0;    ///< neither read nor written without a scaler, like good_steps
  int64_t good_steps = 0;     ///< steps without overflow since the scale last changed
  bool has_scaler = false;    ///< Options::loss_scale is set
  int64_t averaged = 0;       ///< FlatAverage::updates(); unused without an average
  bool has_average = false;   ///< Options::average is set
  int64_t micro_batches = 0;  ///< of all ranks so far
  bool counts_micro_batches = false;  ///< micro_batches is saved: Reproducible::kAnyWorldSize
};

/// The name of EngineCounters::averaged in a state. An engine has it if it keeps an average.
inline constexpr const char* kAveragedUpdates = "engine.averaged_updates";

/// An entry of a state that is a single number.
struct StateNumber {
  std::string name;
  at::ScalarType dtype;   ///< Long or Double
  int64_t bits;           ///< bits of the value
  bool may_lack = false;  ///< may be missing in a loaded state: earlier versions did not save it
  std::optional<size_t> parameter = {};  ///< of the table, if the number belongs to one
  std::optional<size_t> group = {};      ///< of the optimizer, if the number belongs to one
};

/// Returns the numbers of a run in a fixed order, equal on all ranks: the engine's, the step counts
/// of trainable parameters, each group's algorithm (in the name), the hyper-parameters. Local.
std::vector<StateNumber> read_numbers(const ParameterTable& table, const FlatOptimizer& optimizer,
                                      const EngineCounters& counters);

/// Returns what forbids write_numbers(numbers), one line each "<name>: got X, expected Y"; empty if
/// nothing. Local.
std::vector<std::string> problems_of(const std::vector<StateNumber>& numbers,
                                     const FlatOptimizer& optimizer);

/// Returns true if the entry `name` says which algorithm a group has.
bool names_algorithm(const std::string& name);

/// Returns "'<name>': got an entry that this run does not have", with the remedy if the state is
/// from another algorithm or a run under Options::reproducible.
std::string unknown_entry(const std::string& name);

/// Writes back `numbers`, which read_numbers() made and whose values may have changed. Local.
void write_numbers(const std::vector<StateNumber>& numbers, const ParameterTable& table,
                   FlatOptimizer& optimizer, EngineCounters& counters);

}  // namespace tessera::internal

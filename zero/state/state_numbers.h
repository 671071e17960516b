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
  int64_t steps = 0;                  ///< updates applied
  double loss_scale = 1.0;            ///< this and good_steps have a meaning only if has_scaler
  int64_t good_steps = 0;             ///< steps without overflow since the scale last changed
  bool has_scaler = false;            ///< Options::loss_scale is set
  int64_t averaged = 0;               ///< FlatAverage::updates(); unused without an average
  bool has_average = false;           ///< Options::average is set
  int64_t micro_batches = 0;          ///< MicroBatches::count(): backwards so far, over all ranks
  bool counts_micro_batches = false;  ///< states have micro_batches: Reproducible::kAnyWorldSize
};

/// The name of EngineCounters::averaged in a state. Only the state of an engine that keeps an
/// average has it.
inline constexpr const char* kAveragedUpdates = "engine.averaged_updates";

/// An entry of a state that is a single number.
struct StateNumber {
  std::string name;
  at::ScalarType dtype;   ///< Long or Double
  int64_t bits;           ///< the value's bits, whichever dtype it has
  bool may_lack = false;  ///< a loaded state may lack it, because earlier versions did not save it
  std::optional<size_t> parameter = {};  ///< index of its parameter in the table, if it has one
  std::optional<size_t> group = {};      ///< index of its group in the optimizer, if it has one
};

/// Returns the numbers of a run in a fixed order, equal on all ranks: the engine's counters; the
/// step count of each trainable parameter; for each group, a number whose name contains the name of
/// the group's algorithm; and the hyper-parameters. Local.
std::vector<StateNumber> read_numbers(const ParameterTable& table, const FlatOptimizer& optimizer,
                                      const EngineCounters& counters);

/// Returns the reasons why write_numbers() must not be called with `numbers`, one line "<name>: got
/// X, expected Y" each; empty if there are none. Local.
std::vector<std::string> problems_of(const std::vector<StateNumber>& numbers,
                                     const FlatOptimizer& optimizer);

/// Returns true if the entry `name` says which algorithm a group has.
bool names_algorithm(const std::string& name);

/// Returns the text "'<name>': got an entry that this run does not have". If the entry shows that
/// another algorithm or a run under Options::reproducible saved the state, the text also has the
/// remedy.
std::string unknown_entry(const std::string& name);

/// Writes back `numbers`, which read_numbers() made and whose values may have changed. Local.
void write_numbers(const std::vector<StateNumber>& numbers, const ParameterTable& table,
                   FlatOptimizer& optimizer, EngineCounters& counters);

}  // namespace tessera::internal

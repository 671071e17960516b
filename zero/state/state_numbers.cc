#include "tessera/zero/state/state_numbers.h"

#include <bit>
#include <utility>

#include <ATen/Parallel.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/numbers/fp32_factor.h"
#include "tessera/core/numbers/number_text.h"

namespace tessera::internal {

namespace {

StateNumber count(std::string name, int64_t value) {
  return {.name = std::move(name), .dtype = at::kLong, .bits = value};
}

StateNumber real(std::string name, double value) {
  return {.name = std::move(name), .dtype = at::kDouble, .bits = std::bit_cast<int64_t>(value)};
}

constexpr const char* kScale = "scaler.scale";
constexpr const char* kMicroBatches = "engine.micro_batches";
constexpr const char* kIntraOpThreads = "engine.intra_op_threads";
/// In the name of the entry that says which algorithm a group has, this text precedes the
/// algorithm's name. So the state of another algorithm has an entry unknown to this run, and is
/// refused even if all its other entries have the same names.
constexpr const char* kAlgorithm = ".algorithm.";

/// Returns the hyper-parameters in `numbers`, where they come last.
std::vector<double> hyper_parameters_in(const std::vector<StateNumber>& numbers,
                                        const FlatOptimizer& optimizer) {
  std::vector<double> values(optimizer.groups().hyper_parameters().size());
  const size_t first = numbers.size() - values.size();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::bit_cast<double>(numbers[first + i].bits);
  }
  return values;
}

}  // namespace

std::vector<StateNumber> read_numbers(const ParameterTable& table, const FlatOptimizer& optimizer,
                                      const EngineCounters& counters) {
  std::vector<StateNumber> numbers = {count("engine.steps", counters.steps)};
  if (counters.has_scaler) {
    numbers.push_back(real(kScale, counters.loss_scale));
    numbers.push_back(count("scaler.good_steps", counters.good_steps));
  }
  if (counters.has_average) numbers.push_back(count(kAveragedUpdates, counters.averaged));
  if (counters.counts_micro_batches) {
    numbers.push_back(count(kMicroBatches, counters.micro_batches));
    numbers.back().may_lack = true;
    numbers.push_back(count(kIntraOpThreads, at::get_num_threads()));
    numbers.back().may_lack = true;
  }
  const std::vector<int64_t> step_counts = optimizer.step_counts();
  for (size_t i = 0; i < table.size(); ++i) {
    if (!table[i].is_trainable) continue;
    numbers.push_back(count(absl::StrCat("optimizer.", table[i].name, ".step"), step_counts[i]));
    numbers.back().parameter = i;
  }
  const ParameterGroups& groups = optimizer.groups();
  for (size_t group = 0; group < groups.size(); ++group) {
    numbers.push_back(count(absl::StrCat("optimizer.", groups.state_name(group), kAlgorithm,
                                         groups.algorithm(group).name),
                            1));
    numbers.back().may_lack = true;
    numbers.back().group = group;
  }
  size_t group = 0;
  for (const HyperParameter& number : groups.hyper_parameters()) {
    numbers.push_back(
        real(absl::StrCat("optimizer.", number.group, ".", number.name), number.value));
    while (groups.state_name(group) != number.group) ++group;  // numbers are in the groups' order
    numbers.back().group = group;
  }
  return numbers;
}

std::vector<std::string> problems_of(const std::vector<StateNumber>& numbers,
                                     const FlatOptimizer& optimizer) {
  std::vector<std::string> problems =
      optimizer.groups().problems_of(hyper_parameters_in(numbers, optimizer));
  for (const StateNumber& number : numbers) {
    if (number.dtype == at::kLong && number.bits < 0) {
      problems.push_back(
          absl::StrCat("'", number.name, "': got ", number.bits, ", expected at least 0"));
    }
    if (number.name == kIntraOpThreads && number.bits != at::get_num_threads()) {
      problems.push_back(absl::StrCat(
          "'", number.name, "': got ", number.bits, ", expected the ", at::get_num_threads(),
          " of this run, under whose number operators may round otherwise; call "
          "torch::set_num_threads(",
          number.bits, ") first"));
    }
    const double value = std::bit_cast<double>(number.bits);
    if (number.name == kScale && !is_fp32_factor(value)) {
      problems.push_back(absl::StrCat("'", number.name, "': got ", number_text(value),
                                      ", expected a normal number of fp32 above 0"));
    }
  }
  return problems;
}

bool names_algorithm(const std::string& name) {
  return name.starts_with("optimizer.") && name.find(kAlgorithm) != name.npos;
}

std::string unknown_entry(const std::string& name) {
  return absl::StrCat("'", name, "': got an entry that this run does not have",
                      names_algorithm(name)
                          ? "; another algorithm saved the state: give its options to "
                            "parallelize, for the same group"
                      : name == kMicroBatches || name == kIntraOpThreads
                          ? "; a run under Options::reproducible saved the state: set it here, too"
                          : "");
}

void write_numbers(const std::vector<StateNumber>& numbers, const ParameterTable& table,
                   FlatOptimizer& optimizer, EngineCounters& counters) {
  size_t next = 0;
  counters.steps = numbers[next++].bits;
  if (counters.has_scaler) {
    counters.loss_scale = std::bit_cast<double>(numbers[next++].bits);
    counters.good_steps = numbers[next++].bits;
  }
  if (counters.has_average) counters.averaged = numbers[next++].bits;
  if (counters.counts_micro_batches) {
    counters.micro_batches = numbers[next++].bits;
    ++next;  // skips the number of threads, which problems_of() has checked
  }
  std::vector<int64_t> step_counts = optimizer.step_counts();
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i].is_trainable) step_counts[i] = numbers[next++].bits;
  }
  optimizer.set_step_counts(step_counts);
  optimizer.groups().set_hyper_parameters(hyper_parameters_in(numbers, optimizer));
}

}  // namespace tessera::internal

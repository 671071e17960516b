#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/optim/own/elementwise_probe.h"
#include "tessera/optimizer_form.h"

namespace tessera::internal {

/// The functions that try out an optimizer: find_states() and probe_elementwise(), or their
/// counterparts in whole_probe.h.
struct Trial {
  StatesInUse (*find)(const ErasedForm& form, const torch::optim::OptimizerOptions& options);
  std::string (*probe)(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                       const StatesInUse& states);
};

/// The results of trial runs of an optimizer, for each set of its numbers that has been requested.
/// The learning rate is not part of a set: schedules change it at each step. Used by any thread.
///
/// Note [Numbers of the same kind]
/// Steps request results, too, because numbers may change between steps. Which states exist is
/// assumed to depend only on what is switched on: on bools and integers, and on whether other
/// numbers are negative, zero or positive. So if a schedule changes numbers to others of the same
/// kind, earlier results still hold. Then only the optimizer's constructor is run, to see whether
/// it refuses the new numbers as out of range. If states did depend on more, an update would find a
/// state that is not kept and fail the engine on all ranks. parallelize() does not rely on the
/// assumption: it examines the exact numbers.
class Examinations {
 public:
  /// Runs the optimizer with these options, then restores the state of the CPU's default generator.
  /// Later runs by states() do not restore it, because other threads may draw from the generator
  /// while steps run. `problem`: what the caller has found wrong with the form; "" if nothing.
  Examinations(std::shared_ptr<const ErasedForm> form,
               const torch::optim::OptimizerOptions& options, const Trial& trial,
               std::string problem);

  /// Returns the states under `options`, or the form's own problem. Allocates nothing if the
  /// numbers in `options` are known already.
  std::shared_ptr<const StatesInUse> states(const torch::optim::OptimizerOptions& options);
  /// Returns what Trial::probe() returns for exactly these numbers. Runs it once.
  std::string probe(const torch::optim::OptimizerOptions& options);

 private:
  /// The bit patterns of a set of numbers. They have an order even if a number is NaN.
  using Key = std::vector<uint64_t>;
  struct Examination {
    std::shared_ptr<const StatesInUse> states;
    bool is_of_kind = false;  ///< `states` come from other numbers of the same kind
    std::optional<std::string> probed = std::nullopt;
  };

  Examination& at(const torch::optim::OptimizerOptions& options);
  std::shared_ptr<const StatesInUse> examine(const torch::optim::OptimizerOptions& options) const;
  bool is_made(const torch::optim::OptimizerOptions& options) const;

  std::shared_ptr<const ErasedForm> form_;
  const Trial trial_;
  std::string problem_of_form_;
  std::mutex mutex_;
  Key numbers_;
  std::map<Key, Examination> by_numbers_;
  std::map<Key, std::shared_ptr<const StatesInUse>> by_kind_;  // results without a problem only
};

}  // namespace tessera::internal

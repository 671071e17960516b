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

/// How an optimizer is tried out: find_states() and probe_elementwise(), or those of another file.
struct Trial {
  StatesInUse (*find)(const ErasedForm& form, const torch::optim::OptimizerOptions& options);
  std::string (*probe)(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                       const StatesInUse& states);
};

/// What runs of an optimizer have shown, for each set of its numbers that was asked for. The
/// learning rate does not count: schedules change it at each step. Used by any thread.
///
/// Note [Numbers of the same kind]
/// Steps ask, too, since numbers may change between them. Which states there are depends on whether
/// something is switched on: on bools and integers, and on whether other numbers are negative, zero
/// or positive. So a schedule of them finds what is known, and of the optimizer only the
/// constructor runs, which refuses what is out of range. If they did depend on more, an update
/// would find a state that is not kept and fail the engine on all ranks; parallelize() looks at the
/// very numbers.
class Examinations {
 public:
  /// Runs the optimizer with these options. The CPU's default generator is as it was afterwards;
  /// later runs do not put it back, which other threads may draw from while steps run. `problem`:
  /// what the caller has against the form, "" for nothing.
  Examinations(std::shared_ptr<const ErasedForm> form,
               const torch::optim::OptimizerOptions& options, const Trial& trial,
               std::string problem);

  /// With the form's own problem where it has one. Allocates nothing for numbers that are known.
  std::shared_ptr<const StatesInUse> states(const torch::optim::OptimizerOptions& options);
  /// Trial::probe() of the very numbers, once.
  std::string probe(const torch::optim::OptimizerOptions& options);

 private:
  /// A NaN has a place in the order, too.
  using Key = std::vector<uint64_t>;
  struct Examination {
    std::shared_ptr<const StatesInUse> states;
    bool is_of_kind = false;  ///< by other numbers
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
  std::map<Key, std::shared_ptr<const StatesInUse>> by_kind_;  // without a problem
};

}  // namespace tessera::internal

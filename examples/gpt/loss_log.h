#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/engine.h"
#include "tessera/process_group.h"

namespace gpt {

/// Losses and gradient norms of steps. What a step adds stays where it was computed until look(),
/// so that on a GPU only looking waits for the device.
class LossLog {
 public:
  /// `path`: the file that every step is written to, with all digits; empty: none (as on all ranks
  /// but one). After `steps_done` steps of a run that goes on they are added to what is there.
  /// Throws c10::Error if it cannot be written.
  LossLog(std::shared_ptr<tessera::ProcessGroup> world, const std::string& path,
          int64_t steps_done = 0);

  /// Local, non-blocking. The loss of the step to come on this rank: a scalar at the world's
  /// place().
  void add(const at::Tensor& loss);

  /// Local. What engine->step() returned for it. `is_late`: under Options::asynchronous_step, where
  /// that is the result of the step before.
  void add(const tessera::StepResult& result, bool is_late);

  /// Collective; blocking. Writes the steps since the last look() and returns the loss of the last
  /// one, the mean over ranks. Throws c10::Error if the file does not take them.
  double look(tessera::Engine& engine);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::shared_ptr<tessera::ProcessGroup> world_;
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  int64_t written_;                 // steps
  std::vector<at::Tensor> losses_;  // of the steps since
  std::vector<double> norms_;       // of those whose result is known
};

}  // namespace gpt

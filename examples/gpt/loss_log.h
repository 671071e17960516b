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

/// Losses and gradient norms of steps. A step's loss stays on its device until look(), so on a GPU
/// only look() waits for the device.
class LossLog {
 public:
  /// Writes every step to the file `path`, with all digits. With an empty `path`, as all ranks but
  /// one should pass, nothing is written. If `steps_done` > 0, the run was resumed and the file is
  /// appended to. Throws c10::Error if the file cannot be written.
  LossLog(std::shared_ptr<tessera::ProcessGroup> world, const std::string& path,
          int64_t steps_done = 0);

  /// Adds the loss of the next step on this rank: a scalar on the world's device. Local,
  /// non-blocking.
  void add(const at::Tensor& loss);

  /// Adds the result of engine->step(). `is_late`: the result is the previous step's, as under
  /// Options::asynchronous_step. Local.
  void add(const tessera::StepResult& result, bool is_late);

  /// Writes the steps since the last look() and returns the last step's loss, the mean over ranks.
  /// Throws c10::Error if the file cannot be written. Collective; blocking.
  double look(tessera::Engine& engine);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::shared_ptr<tessera::ProcessGroup> world_;
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  int64_t written_;                 // steps written
  std::vector<at::Tensor> losses_;  // of the steps since look()
  std::vector<double> norms_;       // of the steps whose result is known
};

}  // namespace gpt

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "tessera/bench/macro/train/checkpoint_times.h"
#include "tessera/bench/macro/train/task.h"
#include "tessera/bench/macro/train/trainer.h"

namespace bench {

/// Runs the commands of the runner and answers them.
class TrainEntry {
 public:
  /// `foreign_bytes`: what the GPU's allocator has given out to others than the trainer.
  TrainEntry(Trainer& trainer, const Task& task, at::Device device, int64_t foreign_bytes);

  /// Trains `count` steps and answers once. On a CPU each step is timed, including reading its
  /// loss. On a GPU all steps are timed together, from an idle device to an idle device, and losses
  /// are read afterwards. All reported times are then the mean.
  void steps(int64_t count);

  /// Trains one step on a GPU and answers with the device's work in it.
  void counts();

  /// Calls CheckpointTimes::measure() and answers once.
  void checkpoint(const std::string& what, const std::string& directory);

  /// Runs commands until the input ends.
  void serve();

 private:
  Batch next();
  std::vector<double> time_each(int64_t count, std::vector<double>& losses);
  std::vector<double> time_all(int64_t count, std::vector<double>& losses);

  Trainer& trainer_;
  std::function<Batch(int64_t)> make_batch_;
  const at::Device device_;
  const int64_t foreign_bytes_;
  int64_t done_ = 0;
  std::unique_ptr<CheckpointTimes> checkpoint_times_;
};

}  // namespace bench

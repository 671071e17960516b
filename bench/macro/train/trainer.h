#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/bench/macro/train/task.h"
#include "tessera/core/comm/process_group.h"

namespace bench {

/// One way to train a task.
class Trainer {
 public:
  virtual ~Trainer() = default;

  /// A whole step; returns the loss before the update.
  virtual double step(const Batch& batch) = 0;

  /// Writes what the engine did when to `path`, if it was told to record it. Collective.
  virtual void write_trace(const std::string& /*path*/) {}
};

/// `strategy`: "local" (each rank alone, with LibTorch's fused AdamW on all parameters: the floor
/// that everything is measured by), or ddp, zero1, zero2, zero3, zero3-keep under Tessera.
/// Collective unless local. Throws c10::Error for another name.
std::unique_ptr<Trainer> make_trainer(const std::string& strategy, Task task, bool trace,
                                      const std::shared_ptr<tessera::ProcessGroup>& world);

}  // namespace bench

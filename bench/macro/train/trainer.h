#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/bench/macro/train/task.h"
#include "tessera/engine.h"
#include "tessera/process_group.h"

namespace bench {

/// Trains a task.
class Trainer {
 public:
  virtual ~Trainer() = default;

  /// A whole step; returns the loss before the update, a scalar. On a GPU it only queues, the loss
  /// is complete when the current stream has run.
  virtual at::Tensor step(const Batch& batch) = 0;

  /// What trains; null under "local".
  virtual tessera::Engine* engine() { return nullptr; }

  /// Waits for all that steps have queued. On a CPU nothing is left.
  virtual void finish() {}

  /// What the engine's formula says it holds on the device between steps, with pooled gradient
  /// buffers and control; -1 without an engine and under offload.
  virtual int64_t formula_bytes() const { return -1; }

  /// Writes what the engine did when to `path`, if it was told to record it. Collective.
  virtual void write_trace(const std::string& /*path*/) {}
};

/// How to train, as the command line says it.
struct TrainerOptions {
  /// "local" (each rank alone, a plain module with LibTorch's fused AdamW, at::_fused_adamw_, on
  /// all parameters: the floor that everything is measured by), or ddp, zero1, zero2, zero3,
  /// zero3-keep, zero1-apart, zero2-apart, zero3-apart (a copy of the parameters per rank),
  /// zero2-in-backward, zero3-in-backward, and gradients in other forms: ddp-weights, ddp-noop (a
  /// hook that sends nothing), ddp-bf16, ddp-powersgd (from the third backward on) under Tessera,
  /// and on GPUs ddp-offload, zero1-offload, zero2-offload (the optimizer's state in the host's
  /// memory) and zero3-offload (parameters too).
  std::string strategy;
  /// What the model computes with. bf16 is trained over fp32 masters, local as well: its gradients
  /// are widened, AdamW updates the masters, and they are rounded to parameters.
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool graph = false;  ///< forward and backward as a CUDA graph; not local
  bool trace = false;
};

/// `task` has its model at world->device(). Collective unless local. Throws c10::Error for a
/// strategy that there is not.
std::unique_ptr<Trainer> make_trainer(const TrainerOptions& trainer_options, Task task,
                                      const std::shared_ptr<tessera::ProcessGroup>& world);

}  // namespace bench

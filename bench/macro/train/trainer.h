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

  /// Runs a whole step; returns the loss before the update, a scalar. On a GPU it only queues the
  /// step: the loss is complete when the current stream has run.
  virtual at::Tensor step(const Batch& batch) = 0;

  /// The engine; null under "local".
  virtual tessera::Engine* engine() { return nullptr; }

  /// Waits for all work queued by steps. On a CPU there is none.
  virtual void finish() {}

  /// The engine's predicted bytes on the device between steps, including pooled gradient buffers
  /// and control; -1 without an engine and under offload.
  virtual int64_t formula_bytes() const { return -1; }

  /// Writes the trace of the engine to `path` if it was recorded. Collective.
  virtual void write_trace(const std::string& /*path*/) {}
};

/// How to train, from the command line.
struct TrainerOptions {
  /// "local" (each rank alone with a plain module and LibTorch's fused AdamW, at::_fused_adamw_, on
  /// all parameters: the floor of all comparisons), or ddp, zero1, zero2, zero3, zero3-keep,
  /// zero1-apart, zero2-apart, zero3-apart (a copy of the parameters per rank), zero2-in-backward,
  /// zero3-in-backward; gradients in other forms: ddp-weights, ddp-noop (a hook that sends
  /// nothing), ddp-bf16, ddp-powersgd (compresses after two backwards); and on GPUs ddp-offload,
  /// zero1-offload, zero2-offload (the optimizer's state in the host's memory) and zero3-offload
  /// (parameters, too).
  std::string strategy;
  /// The dtype of the computation. bf16 is trained over fp32 masters, also under "local": its
  /// gradients are converted to fp32, AdamW updates the masters, and these are rounded to the
  /// parameters.
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool graph = false;  ///< forward and backward as a CUDA graph; not under "local"
  bool trace = false;
};

/// `task` has its model at world->device(). Collective except under "local". Throws c10::Error for
/// an unknown strategy.
std::unique_ptr<Trainer> make_trainer(const TrainerOptions& trainer_options, Task task,
                                      const std::shared_ptr<tessera::ProcessGroup>& world);

}  // namespace bench

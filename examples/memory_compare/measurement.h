#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <c10/core/ScalarType.h>

#include "tessera/examples/gpt/model.h"
#include "tessera/examples/gpt/optimizer.h"
#include "tessera/examples/memory_compare/configuration.h"
#include "tessera/memory_meter.h"
#include "tessera/process_group.h"

namespace memory_compare {

/// What is trained: a GPT on random text.
struct Workload {
  gpt::ModelSizes model;
  int64_t batch = 2;  ///< sequences per rank, each as long as the model's context
  int64_t steps = 3;
  c10::ScalarType parameters = c10::ScalarType::Float;  ///< what the model computes with
  const gpt::Optimizer* optimizer = &gpt::optimizers().front();
};

/// What one rank shall hold, as the formulas say, and what it held.
struct RankMemory {
  tessera::MemoryBytes persistent;  ///< memory_formula()
  tessera::MemoryBytes peak;  ///< memory_peak_formula(): persistent, and pooled gradient buffers
  tessera::MemoryBytes held;  ///< by the engine, after the last step
  int64_t peak_bytes = 0;     ///< most that the engine held at once, control included
  int64_t pss_bytes = -1;     ///< most that the process had of the samples; -1 where unknown
  int64_t shared_bytes = -1;  ///< what of its memory was shared after the last step; -1: unknown
  int64_t unsharded_buffers_added = 0;  ///< GatherCounts::unsharded_buffers_added
  /// What the GPU's allocator has given out beyond what it had before there was an engine: after
  /// the last step, and most in that step, with what is the user's (activations). -1 on a CPU.
  int64_t device_bytes = -1;
  int64_t device_peak_bytes = -1;
  friend bool operator==(const RankMemory&, const RankMemory&) = default;
};

/// What one configuration needs on each rank. Formulas say the same of all ranks, unless the
/// optimizer does more for some (Muon).
struct Measurement {
  int64_t parameter_numel = 0;  ///< of the model, without padding
  int64_t matrix_numel = 0;     ///< of them in parameters that have weight decay (Gpt::decays())
  std::vector<RankMemory> ranks;
  friend bool operator==(const Measurement&, const Measurement&) = default;
};

/// Trains `workload` for a few steps as `configuration` says and reads the engine's meter. PSS is
/// sampled after forward, backward and update of the last step; it means something only in a
/// process that has done nothing before. On a GPU its allocator is read, too. Collective over
/// `world`, which says where to train; every rank receives everything. Throws c10::Error where the
/// configuration does not fit the world.
Measurement measure(const Configuration& configuration, const Workload& workload,
                    const std::shared_ptr<tessera::ProcessGroup>& world);

/// The rank of which the formulas say most, the first of equals.
size_t largest_rank(const Measurement& measurement);

/// Whether every rank holds exactly what the formula says of it in every class that lasts: all but
/// control, and gradient buffers where they are pooled.
bool is_exact(const Measurement& measurement);

/// The largest part by which what a GPU's allocator says of a rank is off what the engine's meter
/// says: above 0 where blocks are rounded up, or somebody holds what is not counted. Zero on a CPU.
double allocator_error(const Measurement& measurement);

/// A measurement as numbers, for a pipe between processes, and back. from_words throws
/// std::invalid_argument for what to_words cannot have made.
std::vector<int64_t> to_words(const Measurement& measurement);
Measurement from_words(const std::vector<int64_t>& words);

/// What PyTorch's DistributedDataParallel needs in fp32, modelled and not measured: the parameter,
/// its gradient, the gradient's copy in a bucket (it is none only under gradient_as_bucket_view,
/// which is off by default; listed as gradient_buffer), 4 bytes each, and the optimizer's state: 20
/// bytes per parameter with AdamW's two moments.
tessera::MemoryBytes pytorch_ddp(const Measurement& measurement, const gpt::Optimizer& optimizer);

}  // namespace memory_compare

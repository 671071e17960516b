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

/// The training job: a GPT on random text.
struct Workload {
  gpt::ModelSizes model;
  int64_t batch = 2;  ///< sequences per rank, each as long as the model's context
  int64_t steps = 3;
  c10::ScalarType parameters = c10::ScalarType::Float;  ///< compute dtype of the model
  const gpt::Optimizer* optimizer = &gpt::optimizers().front();
};

/// What one rank should hold by the formulas, and what it held.
struct RankMemory {
  tessera::MemoryBytes persistent;  ///< memory_formula()
  tessera::MemoryBytes peak;  ///< memory_peak_formula(): persistent, and pooled gradient buffers
  tessera::MemoryBytes held;  ///< held by the engine after the last step
  int64_t peak_bytes = 0;     ///< peak held by the engine, control included
  int64_t pss_bytes = -1;     ///< largest sampled PSS of the process; -1 if unknown
  int64_t shared_bytes = -1;  ///< shared part of its memory after the last step; -1 if unknown
  int64_t unsharded_buffers_added = 0;  ///< GatherCounts::unsharded_buffers_added
  /// Bytes that the GPU's allocator has given out, without those that libraries keep for good:
  /// after the last step, and the peak in that step, which includes activations. -1 on a CPU.
  int64_t device_bytes = -1;
  int64_t device_peak_bytes = -1;
  friend bool operator==(const RankMemory&, const RankMemory&) = default;
};

/// The memory that one configuration needs on each rank. The formulas say the same for all ranks,
/// unless the optimizer does more work on some (Muon).
struct Measurement {
  int64_t parameter_numel = 0;  ///< of the model, without padding
  int64_t matrix_numel = 0;     ///< the part in parameters with weight decay (Gpt::decays())
  std::vector<RankMemory> ranks;
  friend bool operator==(const Measurement&, const Measurement&) = default;
};

/// Trains `workload` for a few steps under `configuration` and reads the engine's meter. PSS is
/// sampled after forward, backward and update of the last step; it is meaningful only in a process
/// that has done nothing before. On a GPU, LibTorch's allocator is read, too. Collective over
/// `world`, whose device is used; every rank receives all results. Throws c10::Error if the
/// configuration does not fit the world.
Measurement measure(const Configuration& configuration, const Workload& workload,
                    const std::shared_ptr<tessera::ProcessGroup>& world);

/// The rank with the largest prediction, the first of equals.
size_t largest_rank(const Measurement& measurement);

/// Returns true if every rank holds exactly the predicted bytes in every class, apart from control,
/// and from gradient buffers where they are pooled.
bool is_exact(const Measurement& measurement);

/// Returns the largest relative difference, over ranks, between the bytes that the GPU's allocator
/// and the engine's meter report. It is above 0 if the allocator rounds blocks up, or if the meter
/// misses memory. Zero on a CPU.
double allocator_error(const Measurement& measurement);

/// Converts a measurement to numbers, for a pipe between processes, and back. from_words() throws
/// std::invalid_argument if to_words() cannot have made `words`.
std::vector<int64_t> to_words(const Measurement& measurement);
Measurement from_words(const std::vector<int64_t>& words);

/// The bytes that PyTorch's DistributedDataParallel needs in fp32, modelled and not measured: the
/// parameter, its gradient and the gradient's copy in a bucket, 4 bytes each, and the optimizer's
/// state; 20 bytes per parameter with AdamW's two moments. (gradient_as_bucket_view, off by
/// default, avoids the copy, which is listed as gradient_buffer.)
tessera::MemoryBytes pytorch_ddp(const Measurement& measurement, const gpt::Optimizer& optimizer);

}  // namespace memory_compare

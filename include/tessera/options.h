#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>

#include "tessera/precision.h"
#include "tessera/strategy.h"
#include "tessera/wrap_policy.h"

namespace tessera {

/// Dynamic loss scaling, for fp16: the loss is multiplied before backward so that small gradients
/// do not vanish, the update divides by the same. Source: arXiv 1710.03740, section 3.2.
struct LossScale {
  double initial = 65536.0;        ///< a power of two keeps gradients' bits; range (0, infinity)
  double growth = 2.0;             ///< range [1, infinity)
  double backoff = 0.5;            ///< range (0, 1]
  int64_t growth_interval = 2000;  ///< steps without overflow before it grows; at least 1
  friend bool operator==(const LossScale&, const LossScale&) = default;
};

/// What step() does when a gradient is NaN or infinite on any rank. One decision for all ranks.
enum class NonFinite : uint8_t {
  kStop,  ///< throw c10::Error on every rank; nothing is applied
  kSkip,  ///< drop the gradients, apply nothing; StepResult::committed is false
};

/// What a rank found.
struct NonFiniteGradient {
  static constexpr int kAllRanks = -1;

  int rank;               ///< kAllRanks: `elements` is their sum, as asynchronous steps know it
  std::string parameter;  ///< the first one on that rank; "" if only the mean over ranks is not
                          ///< finite
  int64_t elements;
};

/// Equal on all ranks, by rank.
struct NonFiniteReport {
  int64_t step = 0;         ///< the step that was about to be made
  double loss_scale = 1.0;  ///< in force
  std::vector<NonFiniteGradient> gradients;
};

/// What lies in the host's memory while a GPU trains.
enum class Offload : uint8_t {
  kNone,
  kOptimizer,   ///< moments and masters
  kParameters,  ///< the same, and this rank's shards of parameters
};

/// "none", "optimizer", "parameters".
std::string_view to_string(Offload offload);

/// Whether the optimizer's values are a copy of their own rather than the parameters' shards: where
/// these have another dtype, or lie on the device while the host updates.
inline bool has_master_copy(const UnitPrecision& precision, Offload offload) {
  return precision.has_masters() || offload == Offload::kOptimizer;
}

/// How an engine trains. A plain aggregate, so that a call names what it changes and nothing else.
/// All ranks must pass the same values; parallelize compares them.
///
/// An option that the strategy would ignore is an error. One that only ranks with memory of their
/// own need is none where ranks of one host share their parameters (share_parameters): it is a
/// bound that sharing already keeps, and says so below.
struct Options {
  // --- Sharding (changes memory and traffic; results only where said) ---

  Strategy strategy = Strategy::kDdp;

  /// The three degrees of Strategy::kHybrid; must be set with it and only with it. Each divides the
  /// next, the last one the world: HSDP over S of S * R ranks is {S, S, S}. Values with 1 <
  /// gradients < optimizer add in another order and so round differently.
  std::optional<Degrees> degrees = {};

  /// Which modules become units where parameters are split (degree above 1); an error elsewhere.
  WrapPolicy wrap = {};

  /// Over how many ranks a unit stays split between its forward and its backward. Range: divisors
  /// of the parameters' degree. Unset: that degree itself, so a unit is freed and gathered again.
  /// 1 keeps it whole until backward has ended (faster, more memory). Between them, backward
  /// gathers from a second shard among that many neighbouring ranks. An error where parameters are
  /// not split. Where ranks share parameters, no value costs a second gather or more memory.
  std::optional<int> reshard_after_forward = {};

  /// Parameters whose (first) name it accepts are left to the user: not synchronised, split, hooked
  /// or updated. Kept by the engine, which asks again in step() and state_dict(), of parameters
  /// that were registered later.
  std::function<bool(std::string_view parameter)> ignores = {};

  // --- Numerics (changes results) ---

  /// Gradients are scaled down to this global 2-norm before the update. Range (0, infinity];
  /// infinity, the default, does not clip.
  double max_grad_norm = std::numeric_limits<double>::infinity();

  /// The dtypes of parameters, gradients and masters.
  Precision precision = {};

  /// Set: losses are scaled by Engine::scale() before backward, and non-finite gradients are
  /// skipped unless on_non_finite says otherwise.
  std::optional<LossScale> loss_scale = {};

  /// What to do with non-finite gradients. Unset: kSkip under loss_scale, else kStop.
  std::optional<NonFinite> on_non_finite = {};

  /// Asked instead, on every rank with the same report; must answer alike on all ranks.
  std::function<NonFinite(const NonFiniteReport&)> ask_non_finite = {};

  // --- Performance (changes speed and peak memory only) ---

  /// Lets the ranks of one host have one copy of the parameters together, where the degrees give
  /// each of them a slice of its own to update (the parameters' degree is 1 or the optimizer's):
  /// nothing is gathered by copying, and each rank accounts for its slice only. False
  /// keeps copies and unsharded-parameter buffers per rank, as ranks of different hosts have them,
  /// and is an error where the degrees do so anyway (ddp). So does, with a warning, a system that
  /// does not show a rank which pages it wrote (/proc/self/pagemap).
  bool share_parameters = true;

  /// Updates each unit inside backward, as soon as its gradient is reduced, so that reduced
  /// gradients need no memory that lasts. Results are the same to the bit; what changes is what is
  /// allowed. Every backward is followed by step(), which gathers updates and counts; no second
  /// backward, no_sync() or zero_grad() between, and no module used twice in one backward by
  /// recomputation. Parameters cannot be read between. Hyper-parameters are those at the first
  /// gradient of a backward; step() refuses if they have changed since. A non-finite gradient never
  /// reaches a parameter, but the rest of that step does: step() throws on every rank, and the
  /// engine goes on only after load_state_dict() of an earlier state. After an exception inside
  /// backward it does not go on at all. An error unless gradients are split over all ranks, as the
  /// optimizer is (zero2, zero3), and with max_grad_norm, loss_scale, ask_non_finite or
  /// NonFinite::kSkip.
  bool optimizer_in_backward = false;

  /// Bytes of parameters per bucket. Range [1 KiB, 2 GiB]. Unset: 25 MiB, and 1 MiB for the first
  /// bucket to be ready in backward, which is smaller so that reduction starts early. Larger
  /// buckets mean fewer collectives and larger gradient buffers. An error where parameters are
  /// split: there `wrap` says what is reduced together.
  std::optional<int64_t> bucket_bytes = {};
  std::optional<int64_t> first_bucket_bytes = {};

  /// Gathers the unit that is expected next in a thread of its own while the present one computes.
  /// Unset: where communication runs beside computation, that is, where there are at least twice as
  /// many cores as ranks. An error where parameters are not split. Where ranks share parameters
  /// there is nothing to wait for.
  std::optional<bool> prefetch = {};

  /// Keeps the memory that tensors free, in huge pages, instead of returning it to the kernel and
  /// faulting it in again every step: malloc's, and a heap of its own for tensors of 64 KiB and
  /// more (a c10 CPU allocator; one that you have set stays). Process-wide, for good. False where
  /// other parts of the program allocate much between steps that should go back to the system.
  bool keep_freed_memory = true;

  // --- Device (what a GPU, its host and other ranks wait for, and where memory lies) ---

  /// Keeps memory off the GPU: it lies in pinned memory of the host, is copied beside the
  /// computation, and the CPU updates it. Results have the bits of training without it. Copied per
  /// step are each rank's slice of the gradients (once per backward) and of the new values, or of
  /// its shards (kParameters, per gather). An error where parameters lie on the CPU, with
  /// optimizer_in_backward and asynchronous_step, and (kParameters) where a strategy does not split
  /// parameters or splits the optimizer over more ranks.
  Offload offload = Offload::kNone;

  /// GPUs only: step() returns without waiting for the device or for other ranks. The result of
  /// the step (applied, or skipped for gradients that are not finite), its norm and what ranks
  /// disagree about become known in the next step() or in wait(); until then the device decides by
  /// itself what is applied. False waits in step(), as on a CPU. Unset: true on a GPU unless
  /// ask_non_finite or offload is set. An error where it is true on a CPU or with one of these.
  std::optional<bool> asynchronous_step = {};

  /// Lets Engine::micro_step() capture what a forward and a backward queue on a GPU into a CUDA
  /// graph and queue it again as a whole. Parameters' gradients are accumulated on the stream that
  /// captures, from the start. An error on a CPU, in a world of more than one, and where parameters
  /// are split (free_eagerly) or offloaded.
  bool cuda_graphs = false;

  // --- Diagnostics (change nothing but speed) ---

  /// Fills every gradient buffer and every unsharded-parameter buffer with NaN when it is freed, so
  /// that a read that comes too early or too late shows.
  bool poison_freed = false;

  /// A unit is whole only while an operator uses it, also in a world of one: the harshest test of
  /// a model's accesses. An error where parameters are not split.
  bool free_eagerly = false;

  /// A unit that finds no free unsharded-parameter buffer is an error instead of growing the pool.
  /// An error where parameters are not split. Where ranks share parameters there are no buffers, so
  /// none is missing.
  bool fixed_unsharded_buffers = false;

  /// Records what the engine does when (trace_of(), write_trace()).
  bool trace = false;
};

/// OK, or an InvalidArgument status that lists everything about `options` that parallelize would
/// refuse in any world and for any model, as "[options] field: value; allowed; what to do" a line.
absl::Status validate(const Options& options);

}  // namespace tessera

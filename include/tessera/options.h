#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>

#include "tessera/buffer_sync.h"
#include "tessera/precision.h"
#include "tessera/reproducible.h"
#include "tessera/strategy.h"
#include "tessera/weight_average.h"
#include "tessera/wrap_policy.h"

namespace tessera {

/// Dynamic loss scaling, for fp16: the loss is multiplied by the scale before backward so that
/// small gradients do not underflow, and the update divides by it. Source: arXiv 1710.03740,
/// section 3.2.
struct LossScale {
  double initial = 65536.0;        ///< a power of two keeps gradients' bits; 1.2e-38 to 3.4e38
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

/// The non-finite gradients of one rank.
struct NonFiniteGradient {
  static constexpr int kAllRanks = -1;

  int rank;  ///< kAllRanks under asynchronous steps, which know only the sum of `elements` over
             ///< ranks, and if only the norm over all ranks is not finite
  std::string parameter;  ///< the first with such a gradient on that rank; "" if all gradients are
                          ///< finite, but their mean over ranks, or its norm, is not
  int64_t elements;       ///< how many are NaN or infinite; 0 with `parameter` ""
};

/// The non-finite gradients of a step. Equal on all ranks; `gradients` is ordered by rank.
struct NonFiniteReport {
  int64_t step = 0;         ///< the step that was about to be made
  double loss_scale = 1.0;  ///< the loss scale of this step
  std::vector<NonFiniteGradient> gradients;
};

/// State that is kept in the host's memory while a GPU trains.
enum class Offload : uint8_t {
  kNone,
  kOptimizer,   ///< the optimizer's states, masters and Options::average
  kParameters,  ///< the same, and this rank's shards of parameters
};

/// Returns "none", "optimizer" or "parameters".
std::string_view to_string(Offload offload);

/// Returns true if the masters are a copy rather than the parameters' shards themselves, because
/// the shards have another dtype, or lie on the device while the CPU updates.
inline bool has_master_copy(const UnitPrecision& precision, Offload offload) {
  return precision.has_masters() || offload == Offload::kOptimizer;
}

/// How an engine trains. A plain aggregate for designated initializers. All ranks must pass the
/// same values; parallelize compares them.
///
/// An option that the strategy would ignore is an error. Exception: options for split parameters
/// are accepted without effect where ranks of one host share the parameters (share_parameters), as
/// said below for each.
struct Options {
  // --- Sharding (changes memory and traffic; results only where said) ---

  Strategy strategy = Strategy::kDdp;

  /// The three degrees of Strategy::kHybrid; must be set with it and only with it. Each degree
  /// divides the next, and the last one divides the number of ranks: HSDP over S of S * R ranks is
  /// {S, S, S}. With 1 < gradients < optimizer, sums are formed in another order and so round
  /// differently.
  std::optional<Degrees> degrees = {};

  /// Which modules become units where parameters are split (degree above 1); an error elsewhere.
  WrapPolicy wrap = {};

  /// Over how many ranks a unit stays split between its forward and its backward. Range: divisors
  /// of the parameters' degree. Unset: that degree itself, so a unit is freed and gathered again.
  /// 1 keeps it whole until backward has ended (faster, more memory). With a value in between,
  /// backward gathers from second shards of that many neighbouring ranks. An error where parameters
  /// are not split. Without effect where ranks share parameters.
  std::optional<int> reshard_after_forward = {};

  /// Returns true for the (first) names of parameters that are left to the user, that is, not
  /// synchronised, split, hooked or updated. The engine keeps the function and also calls it in
  /// step() and state_dict(), for parameters that were registered later. An error if no parameter
  /// remains.
  std::function<bool(std::string_view parameter)> ignores = {};

  // --- Numerics (changes results) ---

  /// Gradients are scaled down to this global norm before the update, as
  /// torch::nn::utils::clip_grad_norm_ does. Range (0, infinity]; infinity, the default, does not
  /// clip.
  double max_grad_norm = std::numeric_limits<double>::infinity();

  /// The p of that norm and of StepResult::grad_norm; infinity: the largest magnitude. Range (0,
  /// infinity]. The sum of |g|^p is exact but for the rounding of blocks of 64 elements to fp64, so
  /// its bits do not depend on the strategy. Powers outside fp64's range vanish or overflow (an
  /// infinite norm counts as a non-finite gradient): use infinity instead of a large p. Values
  /// other than 2 are an error with optimizer_in_backward, and on a GPU without offload.
  double grad_norm_type = 2.0;

  /// Like max_grad_norm, but for each group of the optimizer by itself, as if clip_grad_norm_ were
  /// called on each group's parameters. Keys are group names: "defaults" or the OptimizerGroup's,
  /// as in StateDict. Range of each (0, infinity]; groups that are not named are not clipped.
  /// StepResult::grad_norm is the norm of all gradients before this clipping. An error together
  /// with max_grad_norm, with optimizer_in_backward, on a GPU without offload, and for a group that
  /// is not in the OptimizerPlan.
  std::map<std::string, double> max_grad_norm_by_group = {};

  /// Every element of the gradients is clamped to [-max_grad_value, max_grad_value] before the
  /// update, as torch::nn::utils::clip_grad_value_ does. This applies to the mean over ranks,
  /// without the loss scale, before norms are taken. NaN and infinities are not clamped:
  /// on_non_finite decides. Range (0, infinity]; infinity, the default, does not clip. An error
  /// with optimizer_in_backward, and on a GPU without offload.
  double max_grad_value = std::numeric_limits<double>::infinity();

  /// Gradients are the sum over ranks divided by this. Unset: the number of ranks, which makes them
  /// the mean. A world of one divides as well. The division happens once, inside the reduction, in
  /// the precision of its sums (fp32, or fp64 for fp64). Range: the positive normal numbers of
  /// fp32, 1.2e-38 to 3.4e38. On a GPU the number of ranks only.
  std::optional<double> gradient_divide_factor = {};

  /// With kAnyWorldSize, a step of N ranks with k micro-steps has the same bits as a step of N'
  /// ranks with k' micro-steps if N k = N' k'. This holds under every strategy, including 1 <
  /// gradients < optimizer (docs/gradients.md lists further conditions). Rank r in micro-step s has
  /// micro-batch s N + r of the step (Engine::micro_batch()); sums over ranks, then over
  /// micro-steps, follow one complete binary tree over these numbers. A step of k micro-steps keeps
  /// log2(k) - 1 more reduced gradients (memory_formula.h). Works on CPUs, if N and k are powers of
  /// two and all ranks have the same number of intra-op threads. An error with loss_scale, buffers
  /// other than kOnce, a gradient_divide_factor that is no power of two, fp16, 16-bit parameters
  /// whose gradients are not sent and summed in one wider dtype (precision), and a model with
  /// running statistics that ignores_buffers does not ignore.
  Reproducible reproducible = Reproducible::kOneWorldSize;

  /// The dtypes of parameters, gradients and masters.
  Precision precision = {};

  /// If set, scale losses by Engine::scale() before backward; steps with non-finite gradients are
  /// skipped unless on_non_finite says otherwise.
  std::optional<LossScale> loss_scale = {};

  /// What to do with non-finite gradients. Unset: kSkip under loss_scale, else kStop.
  std::optional<NonFinite> on_non_finite = {};

  /// Called instead of on_non_finite, on every rank with the same report; must return the same on
  /// all ranks.
  std::function<NonFinite(const NonFiniteReport&)> ask_non_finite = {};

  /// If set, the engine keeps an average of the weights (EMA, SWA): one more value per parameter,
  /// in the masters' dtype, split like the optimizer's states (memory_formula.h).
  /// Engine::begin_average() makes the model the average. Training itself is the same to the bit.
  /// An error where a GPU updates the parameters, because there is no GPU kernel for averages; set
  /// `offload` there.
  std::optional<WeightAverage> average = {};

  /// What step() does with the model's buffers: see BufferSync. It happens once per step that all
  /// ranks agree to, even if non-finite gradients skip the update, and not in micro-steps: one
  /// broadcast of all buffers (kBroadcast), or one all-reduce per floating dtype and one broadcast
  /// of the others (kMean), in a copy of the buffers (MemoryClass::kControl). A buffer that was
  /// added, removed or given another shape or dtype on any rank makes step() throw on every rank,
  /// naming it (added and removed ones at steps 1, 2, 4, 8, ...). Has no effect in a world of one.
  BufferSync buffers = BufferSync::kOnce;

  /// Returns true for the names of buffers that are left to the user: neither compared between
  /// ranks nor made equal, at parallelize or later, nor saved. A buffer that is ignored under one
  /// of its names is ignored under all. The engine keeps the function, as it does `ignores`.
  std::function<bool(std::string_view buffer)> ignores_buffers = {};

  /// If true, a torch::nn::BatchNorm1d, 2d or 3d in the model, whose statistics are those of one
  /// rank's samples, is an error that names it. For models that should have SyncBatchNorm
  /// (sync_batch_norm.h) only.
  bool requires_sync_batch_norm = false;

  // --- Performance (changes speed and peak memory only) ---

  /// Lets the ranks of one host share one copy of the parameters, where the degrees give each of
  /// them a different slice to update (the parameters' degree is 1 or the optimizer's): nothing is
  /// gathered by copying, and each rank counts only its slice as its memory. False keeps a copy and
  /// unsharded-parameter buffers per rank, as ranks of different hosts have them, and is an error
  /// where ranks cannot share anyway (ddp). On a system that does not show which pages a process
  /// has written (/proc/self/pagemap), ranks keep copies in any case, with a warning.
  bool share_parameters = true;

  /// Updates each unit inside backward, as soon as its gradient is reduced, so that reduced
  /// gradients need no persistent memory. Results are the same to the bit. Restrictions: every
  /// backward must be followed by step(), which all-gathers the updates and counts the step; in
  /// between, a second backward, no_sync(), zero_grad() and reading parameters are errors; no
  /// module may be used twice in one backward by recomputation. Hyper-parameters are those at the
  /// first gradient of a backward; step() throws if they have changed since. A non-finite gradient
  /// never reaches a parameter, but other updates of that step are applied: step() throws on every
  /// rank, and the engine can be used again only after load_state_dict() of an earlier state. After
  /// an exception inside backward it cannot be used at all. An error unless gradients and optimizer
  /// state are both split over all ranks (zero2, zero3); also on a GPU, and with max_grad_norm,
  /// max_grad_norm_by_group, max_grad_value, another grad_norm_type than 2, loss_scale,
  /// ask_non_finite, offload or NonFinite::kSkip.
  bool optimizer_in_backward = false;

  /// Limits on the bytes of parameters per bucket, in the order in which backward is expected to
  /// complete the buckets; the last one applies to all further buckets. Range of each [1 KiB, 2
  /// GiB]. Empty: 1 MiB for the first, so that reduction starts early, and 25 MiB for the others;
  /// where ranks communicate over MPI 1 MiB for all, because the last bucket is sent when there is
  /// nothing left to compute. Larger buckets mean fewer collectives and larger gradient buffers. An
  /// error where parameters are split: there `wrap` determines what is reduced together.
  std::vector<int64_t> bucket_bytes = {};

  /// From the second backward on, reduces buckets (units where parameters are split) in the order
  /// in which rank 0 completed their gradients in the first. False: always in the reverse of the
  /// order in which modules were registered. Results are the same to the bit. Buckets that a
  /// backward does not complete come last. The order is learned again after set_trainable(),
  /// add_group() and in a new engine; with asynchronous_step it is never learned.
  bool reorder_reductions = true;

  /// How many units may have gradients in memory at once, between autograd and the end of their
  /// reduction, where a rank does not keep whole gradients (zero2, zero3; ddp that sends another
  /// dtype than it adds). A gradient of a further unit waits. Each takes a gradient buffer as large
  /// as the largest unit; two let a rank compute while the other ranks or the network lag by one.
  /// Range [1, 1024]. Unset: one where communication runs in the calls, two where it runs beside
  /// computation. An error with zero1, whose units have a buffer each, and on a GPU, where the
  /// order of the streams decides.
  std::optional<int> units_in_reduction = {};

  /// Gathers the unit that is expected next, in a thread or over NCCL on a stream of its own, while
  /// the current one computes.
  /// Unset: true where communication runs beside computation (over NCCL; on CPUs if there are at
  /// least twice as many cores as ranks) and with Offload::kParameters. An error where parameters
  /// are not split. Without effect where ranks share parameters.
  std::optional<bool> prefetch = {};

  /// Keeps the memory that tensors free, in huge pages, instead of returning it to the kernel and
  /// faulting it in again every step: malloc does not return memory, and tensors of 64 KiB and more
  /// get a heap of their own (a c10 CPU allocator; an allocator that the program has set stays).
  /// Process-wide and permanent. Set it to false if other parts of the program allocate much
  /// between steps that should go back to the system.
  bool keep_freed_memory = true;

  // --- Device (what a GPU, its host and other ranks wait for, and where memory lies) ---

  /// Keeps part of the state in pinned host memory instead of GPU memory; the CPU updates it, and
  /// copies run beside the computation. Results are the same to the bit as without offload. Each
  /// step copies each rank's slice of the gradients (once per backward) and of the new values, or
  /// its shards (kParameters, per gather). An error where parameters lie on the CPU, with
  /// optimizer_in_backward and asynchronous_step, and (kParameters) where a strategy does not split
  /// parameters or splits the optimizer over more ranks.
  Offload offload = Offload::kNone;

  /// GPUs only: step() does not wait for this step, at most for the previous one. The device
  /// decides whether the step is applied; its result (applied or skipped), its norm and its errors
  /// are returned or thrown by the next step() or by wait(). False waits in step(), as on a CPU.
  /// Unset: true on a GPU unless ask_non_finite or offload is set or the degrees keep partial sums
  /// (1 < gradients < optimizer). True is an error on a CPU and with one of these settings.
  std::optional<bool> asynchronous_step = {};

  /// Lets Engine::micro_step() capture what a forward and a backward queue on a GPU into a CUDA
  /// graph and replay it. Gradients are accumulated on the capturing stream from the first call on.
  /// An error on a CPU, in a world of more than one rank, and with free_eagerly or offload.
  bool cuda_graphs = false;

  // --- Diagnostics (change only speed) ---

  /// Fills every gradient buffer and every unsharded-parameter buffer with NaN when it is freed, so
  /// that a read at the wrong time becomes visible. Also compares a gathered unit, before it is
  /// freed, with what was gathered (CPU): step() names a parameter that was written meanwhile
  /// without any operator's schema showing it, as by a custom operator over raw pointers.
  bool poison_freed = false;

  /// If true, a unit is whole only while an operator uses it, even in a world of one: the strictest
  /// test of a model's accesses. An error where the strategy does not split parameters.
  bool free_eagerly = false;

  /// If true, gathering a unit while no unsharded-parameter buffer is free is an error; otherwise
  /// the pool of buffers grows. An error where parameters are not split. Without effect where ranks
  /// share parameters.
  bool fixed_unsharded_buffers = false;

  /// Records a trace of what the engine does (trace_of(), write_trace()).
  bool trace = false;
};

/// Returns OK, or an InvalidArgument status that lists everything about `options` that parallelize
/// would refuse in any world and for any model, each as "[options] field: value; allowed; remedy".
absl::Status validate(const Options& options);

}  // namespace tessera

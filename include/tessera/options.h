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

/// Dynamic loss scaling, for fp16: before backward the loss is multiplied by a scale, so that small
/// gradients do not underflow, and the update divides gradients by it. After an overflow the scale
/// is multiplied by `backoff`; after growth_interval steps in a row without one, by `growth`.
/// Source: arXiv 1710.03740, section 3.2.
struct LossScale {
  /// Scale of the first step, 1.2e-38 to 3.4e38; a power of two rounds no gradient.
  double initial = 65536.0;
  double growth = 2.0;             ///< range [1, infinity)
  double backoff = 0.5;            ///< range (0, 1]
  int64_t growth_interval = 2000;  ///< at least 1
  friend bool operator==(const LossScale&, const LossScale&) = default;
};

/// What step() does when a gradient is NaN or infinite on any rank. One decision for all ranks.
enum class NonFinite : uint8_t {
  kStop,  ///< step() throws c10::Error on every rank; nothing is applied
  kSkip,  ///< step() drops the gradients and applies nothing; StepResult::committed is false
};

/// The non-finite gradients of one rank.
struct NonFiniteGradient {
  static constexpr int kAllRanks = -1;

  /// The rank that produced the gradients; if `parameter` is "", a rank whose part of the mean is
  /// not finite. kAllRanks in two cases: if only the norm over all ranks is not finite; and under
  /// asynchronous steps, where `elements` is the sum over all ranks.
  int rank;
  /// The first parameter with such a gradient on that rank; "" if all gradients are finite, but
  /// their mean over ranks or the norm is not.
  std::string parameter;
  /// How many elements of the rank's gradients are NaN or infinite; 0 if `parameter` is "".
  int64_t elements;
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
  kParameters,  ///< the same as kOptimizer, and this rank's shards of parameters
};

/// Returns "none", "optimizer" or "parameters".
std::string_view to_string(Offload offload);

/// Returns true if the masters are copies of the parameters' shards, because the shards have
/// another dtype than the masters, or because the shards lie on the device while the CPU updates;
/// false if the masters are the shards themselves.
inline bool has_master_copy(const UnitPrecision& precision, Offload offload) {
  return precision.has_masters() || offload == Offload::kOptimizer;
}

/// How an engine trains. A plain aggregate for designated initializers. All ranks must pass the
/// same values; parallelize compares them.
///
/// It is an error to set an option that the strategy would ignore. Exception: where ranks of one
/// host share the parameters (share_parameters), options for split parameters are accepted and have
/// no effect; the comments on these options say so.
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
  /// of the parameters' degree. Unset: that degree itself, so a unit is freed after forward and
  /// gathered again in backward. 1: a unit stays whole until backward has ended (faster, more
  /// memory). With a value n in between, each rank keeps 1/n of the unit after forward (a second
  /// shard), and backward gathers the unit from n neighbouring ranks. An error where parameters are
  /// not split. Without effect where ranks share parameters.
  std::optional<int> reshard_after_forward = {};

  /// Returns true if the parameter with this (first) name is left to the user, that is, not
  /// synchronised, split, hooked or updated. The engine keeps the function and also calls it in
  /// step() and state_dict(), for parameters that were registered later. An error if no parameter
  /// remains.
  std::function<bool(std::string_view parameter)> ignores = {};

  // --- Numerics (changes results) ---

  /// Gradients are scaled down to this global norm before the update, as
  /// torch::nn::utils::clip_grad_norm_ does. Range (0, infinity]; infinity, the default, does not
  /// clip.
  double max_grad_norm = std::numeric_limits<double>::infinity();

  /// The p of the p-norm that max_grad_norm limits and StepResult::grad_norm reports; infinity: the
  /// norm is the largest magnitude. Range (0, infinity]. The sum of |g|^p is exact but for the
  /// rounding of blocks of 64 elements to fp64, so its bits do not depend on the strategy. Powers
  /// outside fp64's range vanish or overflow (an infinite norm counts as a non-finite gradient):
  /// use infinity instead of a large p. Values other than 2 are an error with
  /// optimizer_in_backward, and on a GPU without offload.
  double grad_norm_type = 2.0;

  /// Like max_grad_norm, but for each group of the optimizer by itself, as if clip_grad_norm_ were
  /// called on each group's parameters. Keys are group names, as in StateDict: "defaults" or
  /// OptimizerGroup::name. Range of each (0, infinity]; groups that are not named are not clipped.
  /// StepResult::grad_norm is the norm of all gradients before this clipping. An error together
  /// with max_grad_norm, with optimizer_in_backward, on a GPU without offload, and for a group that
  /// is not in the OptimizerPlan.
  std::map<std::string, double> max_grad_norm_by_group = {};

  /// Every element of the gradients is clamped to [-max_grad_value, max_grad_value] before the
  /// update, as torch::nn::utils::clip_grad_value_ does. What is clamped is the mean over ranks
  /// after division by the loss scale; norms are taken of the clamped values. NaN and infinities
  /// are not clamped: on_non_finite decides. Range (0, infinity]; infinity, the default, does not
  /// clip. An error with optimizer_in_backward, and on a GPU without offload.
  double max_grad_value = std::numeric_limits<double>::infinity();

  /// Gradients are the sum over ranks divided by this, in a world of one, too. Unset: the number of
  /// ranks, so gradients are the mean. The division happens once, inside the reduction, in the
  /// precision of the sums: fp64 for fp64 gradients, else fp32. Range: the positive normal
  /// numbers of fp32, 1.2e-38 to 3.4e38. On a GPU only the number of ranks is allowed.
  std::optional<double> gradient_divide_factor = {};

  /// With kAnyWorldSize, a step of N ranks with k micro-steps has the same bits as a step of N'
  /// ranks with k' micro-steps if N k = N' k'. This holds under every strategy, including 1 <
  /// gradients < optimizer (docs/gradients.md lists further conditions). Rank r in micro-step s has
  /// micro-batch s N + r of the step (Engine::micro_batch()); sums over ranks, then over
  /// micro-steps, follow one complete binary tree over these numbers. A step of k micro-steps keeps
  /// log2(k) - 1 more reduced gradients (memory_formula.h). Needs CPUs, powers of two for N and k,
  /// and the same number of intra-op threads on all ranks. An error with loss_scale, buffers other
  /// than kOnce, a gradient_divide_factor that is no power of two, parameters in fp16, gradients
  /// that are not both sent and summed in fp32, or both in fp64 (precision), and a model with a
  /// SyncBatchNorm, or with running statistics that ignores_buffers does not ignore.
  Reproducible reproducible = Reproducible::kOneWorldSize;

  /// The dtypes of parameters, gradients and masters.
  Precision precision = {};

  /// If set, scale losses by Engine::scale() before backward; steps with non-finite gradients are
  /// skipped unless on_non_finite says otherwise.
  std::optional<LossScale> loss_scale = {};

  /// What to do with non-finite gradients. Unset: kSkip under loss_scale, else kStop.
  std::optional<NonFinite> on_non_finite = {};

  /// If set, this function decides instead of on_non_finite. It is called on every rank, with the
  /// same report, and must return the same on all ranks.
  std::function<NonFinite(const NonFiniteReport&)> ask_non_finite = {};

  /// If set, the engine keeps an average of the weights (EMA, SWA): one more value per parameter,
  /// in the masters' dtype, split like the optimizer's states (memory_formula.h).
  /// Engine::begin_average() makes the model the average. Training gives the same bits with and
  /// without an average. An error where a GPU updates the parameters, because there is no GPU
  /// kernel for averages; set `offload` there.
  std::optional<WeightAverage> average = {};

  /// What step() does with the model's buffers: see BufferSync. It happens once in each step()
  /// whose vote succeeds, even if non-finite gradients skip the update, and not in micro-steps.
  /// kBroadcast takes one broadcast of all buffers; kMean takes one all-reduce per floating dtype
  /// and one broadcast of the other buffers. Both run in a copy of the buffers
  /// (MemoryClass::kControl). A buffer that was added, removed or given another shape or dtype on
  /// any rank makes step() throw on every rank, naming it (step() looks for added and removed
  /// buffers only at steps 1, 2, 4, 8, ...). Has no effect in a world of one.
  BufferSync buffers = BufferSync::kOnce;

  /// Returns true for the names of buffers that are left to the user: neither compared between
  /// ranks nor made equal, at parallelize or later, nor saved. A buffer that is ignored under one
  /// of its names is ignored under all. The engine keeps the function, as it does `ignores`.
  std::function<bool(std::string_view buffer)> ignores_buffers = {};

  /// If true, a torch::nn::BatchNorm1d, 2d or 3d in the model, whose statistics are those of one
  /// rank's samples, is an error that names it. For models in which each BatchNorm should be a
  /// SyncBatchNorm (sync_batch_norm.h).
  bool requires_sync_batch_norm = false;

  // --- Performance (changes speed and peak memory only) ---

  /// Lets the ranks of one host share one copy of the parameters, where the degrees give each of
  /// them a different slice to update (the parameters' degree is 1 or equals the optimizer's):
  /// nothing is gathered by copying, and each rank counts only its slice as its memory. If false,
  /// each rank has its own copy and unsharded-parameter buffers, as ranks of different hosts have;
  /// false is an error under strategies in which ranks never share (ddp). On a system that does not
  /// show which pages a process has written (/proc/self/pagemap), ranks keep copies in any case,
  /// with a warning.
  bool share_parameters = true;

  /// If true, updates each unit inside backward, as soon as its gradient is reduced, so that
  /// reduced gradients need no persistent memory. Results are the same to the bit. Restrictions:
  /// every backward must be followed by step(), which all-gathers the updates and counts the step;
  /// no backward may be inside no_sync(); between that backward and the step(), a second backward,
  /// zero_grad() and reading parameters are errors; recomputation must not use a module twice in
  /// one backward. Hyper-parameters are those at the first gradient of a backward; step() throws if
  /// they have changed since. A non-finite gradient never reaches a parameter, but other updates of
  /// that step are applied: step() throws on every rank, and the engine can be used again only
  /// after load_state_dict() of an earlier state. After an exception inside backward it cannot be
  /// used at all. An error unless gradients and optimizer state are both split over all ranks
  /// (zero2, zero3); also on a GPU, and with max_grad_norm, max_grad_norm_by_group, max_grad_value,
  /// another grad_norm_type than 2, loss_scale, ask_non_finite, offload or NonFinite::kSkip.
  bool optimizer_in_backward = false;

  /// Limits on the bytes of parameters per bucket, in the order in which backward is expected to
  /// complete the buckets; the last one applies to all further buckets. Range of each [1 KiB, 2
  /// GiB]. Empty: 1 MiB for the first bucket, so that reduction starts early, and 25 MiB for the
  /// others. Over MPI, empty means 1 MiB for all buckets: the last bucket should be small, because
  /// nothing is left to compute while it is sent. Larger buckets mean fewer collectives and larger
  /// gradient buffers. An error where parameters are split: there `wrap` determines what is reduced
  /// together.
  std::vector<int64_t> bucket_bytes = {};

  /// From the second backward on, reduces buckets (units where parameters are split) in the order
  /// in which rank 0 completed their gradients in the first backward. If false, always in the
  /// reverse of the order in which modules were registered. Results are the same to the bit.
  /// Buckets whose gradients a backward does not complete are reduced last. The order is learned
  /// again after set_trainable(), add_group() and in a new engine; with asynchronous_step it is
  /// never learned.
  bool reorder_reductions = true;

  /// How many units may have gradients in memory at once, between autograd and the end of their
  /// reduction, where a rank does not keep whole gradients (zero2, zero3; ddp whose
  /// Precision::communication differs from its Precision::reduce). A gradient of a further unit
  /// waits. Each of these units takes a gradient buffer as large as the largest unit. With two, a
  /// rank can compute while the other ranks or the network lag by one unit. Range [1, 1024]. Unset:
  /// one if collectives run inside the calls, two if they run beside computation. On a GPU a hybrid
  /// that gathers reduced gradients over replicas has one more. An error with zero1, whose units
  /// have a buffer each.
  std::optional<int> units_in_reduction = {};

  /// If true, gathers the unit that is expected next while the current unit computes: in a thread,
  /// or, over NCCL, on a stream of its own. Unset: true where communication runs beside computation
  /// (over NCCL; on CPUs if there are at least twice as many cores as ranks) and with
  /// Offload::kParameters. An error where parameters are not split. Without effect where ranks
  /// share parameters.
  std::optional<bool> prefetch = {};

  /// If true, memory that tensors free stays with the process, in huge pages, instead of going back
  /// to the kernel and being faulted in again every step: malloc does not return memory, and
  /// tensors of 64 KiB and more get a heap of their own (a c10 CPU allocator; an allocator that the
  /// program has set stays). Process-wide and permanent. Set it to false if other parts of the
  /// program allocate much between steps that should go back to the system.
  bool keep_freed_memory = true;

  // --- Device (what a GPU, its host and other ranks wait for, and where memory lies) ---

  /// Keeps part of the state in pinned host memory instead of GPU memory; the CPU updates it, and
  /// copies run beside the computation. Results are the same to the bit as without offload. This
  /// rank's slice of the gradients is copied to the host once per backward. Its slice of the new
  /// values is copied to the GPU once per step; under kParameters its shard of a unit is copied
  /// instead, at each gather of the unit. An error where parameters lie on the CPU, with
  /// optimizer_in_backward or asynchronous_step, and, for kParameters, if the strategy does not
  /// split parameters or splits the optimizer's state over more ranks than the parameters.
  Offload offload = Offload::kNone;

  /// GPUs only. If true, step() does not wait for its own update to run on the device; at most it
  /// waits for the update of the previous step. The device decides whether the step is applied; its
  /// result (applied or skipped), its norm and its errors are returned or thrown by the next step()
  /// or by wait(). If false, step() waits for its own update, as on a CPU. Unset: true on a GPU
  /// unless ask_non_finite or offload is set or the degrees keep partial sums (1 < gradients <
  /// optimizer). True is an error on a CPU and with one of these settings.
  std::optional<bool> asynchronous_step = {};

  /// If true, Engine::micro_step() captures a CUDA graph of the GPU work of a forward and a
  /// backward, and replays the graph in later calls. Gradients are accumulated on the capturing
  /// stream from the first call on. An error on a CPU, in a world of more than one rank, and with
  /// free_eagerly or offload.
  bool cuda_graphs = false;

  // --- Diagnostics (change only speed) ---

  /// Fills every gradient buffer and every unsharded-parameter buffer with NaN when it is freed, so
  /// that a read at the wrong time becomes visible. On a CPU, when a unit is freed, its values are
  /// also compared with those that were gathered. If a parameter was written meanwhile by something
  /// that no operator's schema shows (a custom operator with raw pointers, say), step() throws and
  /// names it.
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

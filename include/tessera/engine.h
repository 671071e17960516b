#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/backward_options.h"
#include "tessera/gather_counts.h"
#include "tessera/join.h"
#include "tessera/mean.h"
#include "tessera/memory_meter.h"
#include "tessera/no_sync.h"
#include "tessera/parameter_predicate.h"
#include "tessera/parameter_table.h"
#include "tessera/partial_state.h"
#include "tessera/report.h"
#include "tessera/state_dict.h"
#include "tessera/state_stream.h"
#include "tessera/step_result.h"
#include "tessera/strategy.h"
#include "tessera/unit_plan.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera {

namespace internal {
class RebuildableEngine;
struct OpenAverage;
}  // namespace internal

struct OptimizerGroup;
class CommHook;
class ProcessGroup;
class Trace;

/// What Engine::set_trainable() does with the optimizer's state of parameters that it freezes.
enum class FrozenState : uint8_t { kDropped, kReturned };

/// Trains one model on the ranks of a process group. Made by parallelize() (tessera/parallelize.h).
/// The loop is the user's own: forward, loss.backward(), engine->step(). A step uses gradients that
/// are summed over the backwards since the last step and averaged over ranks;
/// BackwardOptions::weight makes this a weighted mean.
///
/// Where parameters are split (zero3, hybrids), an operator that reads a parameter finds it whole,
/// in forward, backward and recomputation. Between uses its memory is freed, and any other access
/// (raw pointers, torch::save) throws an error that names the unit; make such accesses inside
/// gather() or full_parameters(). On CPUs a rank gathers without its peers taking part, so ranks
/// may take different branches or evaluate alone; on GPUs gathers are collective, and all ranks use
/// units in the same order, in evaluation too.
///
/// Every rank makes the collective calls in the same order: backward and accumulate(), which reduce
/// unless they are inside no_sync(), and the calls marked "Collective" below. Backward runs on the
/// thread that made the engine. Any thread may make the other calls (on a GPU with the group's
/// device current): one at a time, and not during a backward. Several engines may live in one
/// process (a GAN), if all ranks use them in the same order.
///
/// Functions that the engine calls back (a schedule, a predicate, ask_non_finite, a sink) must not
/// call the engine for training or state: such a call throws c10::Error.
///
/// Errors: misuse throws c10::Error. A failed collective throws CommError and poisons the engine:
/// every later call throws that error. An exception on one rank in a collective part of a call does
/// the same, because the other ranks cannot finish that part without this rank. A backward that
/// reduces throws c10::Error on all ranks if one of them wrote a parameter outside
/// modify_parameters() since the last step (with another optimizer, say), as far as version
/// counters and first elements show it. The gradients are valid then, and modify_parameters() makes
/// the parameters equal again. Under asynchronous steps the next step() throws this error, and a
/// second backward before that step() ends the engine. On a non-finite gradient step() throws
/// c10::Error on all ranks and applies nothing, unless Options::on_non_finite skips the step. If
/// ranks differ in what they have reduced or dropped, backward and each step() after it throw
/// c10::Error until all ranks call zero_grad(). Under Options::asynchronous_step (the default on a
/// GPU) the errors of a step are thrown by the next step() or by wait(), and the gradients computed
/// since that step are dropped.
///
/// Destroying an engine is local: its hooks are removed; the parameters stay whole in memory of
/// their own, or, where they are split, throw when they are read. In a child of fork(), calls on an
/// inherited engine throw CommError, and reading its parameters throws c10::Error.
class Engine final {
 public:
  /// Called by parallelize().
  explicit Engine(std::unique_ptr<internal::RebuildableEngine> implementation);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Collective. Finishes reductions, agrees with all ranks to commit, clips, updates,
  /// all-gathers new parameters and clears the gradients. Throws c10::Error if there was no
  /// backward since the last step, when ranks disagree, on non-finite gradients, when a parameter
  /// was written or re-assigned outside modify_parameters(), and (checked in steps 1, 2, 4, 8, ...)
  /// when trainable parameters were added to or removed from the model since parallelize.
  StepResult step();

  /// Returns the optimizer, for learning rate schedulers and for reading or changing
  /// hyper-parameters (to the same values on all ranks). Its step() throws. Its zero_grad() has the
  /// effect of Engine::zero_grad() at the next backward or step.
  torch::optim::Optimizer& optimizer();

  /// Returns the learning rate of the update that follows the first `step` updates, for the
  /// parameters of `group`: "defaults" or the OptimizerGroup's name, as in StateDict.
  using Schedule = std::function<double(int64_t step, std::string_view group)>;

  /// Local; pass the same function on all ranks. From now on `rate` gives the learning rates of
  /// each update. They are set in step(), or, under Options::optimizer_in_backward, at a backward's
  /// first gradient. `step` is the number of updates applied so far (StepResult::step), so it is 0
  /// for the first update. Skipped steps do not count, and load_state_dict() sets the count, so a
  /// schedule has nothing to save; it must depend on its arguments only. An empty function ends the
  /// schedule; the rates stay.
  ///
  /// step() throws c10::Error on all ranks, with nothing applied, if the function throws, if rates
  /// are out of range or differ between ranks, and if something else (a scheduler of LibTorch) has
  /// changed a rate after the schedule had set it.
  void set_schedule(Schedule rate);
  /// The same for a function that gives one rate for all groups: rate(step).
  template <typename Rate>
  requires std::is_invocable_r_v<double, Rate&, int64_t>
  void set_schedule(Rate rate) {
    set_schedule(Schedule([rate = std::move(rate)](int64_t step, std::string_view) mutable {
      return static_cast<double>(rate(step));
    }));
  }

  /// Collective as loss.backward() is. Runs scale(loss).backward(). `options` can give the loss a
  /// weight (BackwardOptions::weight), for ranks or micro-steps with different numbers of samples
  /// or tokens. If gradients are sent or summed in fp16, the first weighted backward of a step also
  /// runs a collective, inside no_sync() too, in which ranks agree on a number by which all weights
  /// of the step are divided. If `loss` has weight 0, it may be undefined or have no graph.
  ///
  /// Throws c10::Error on every rank, and so does step() until zero_grad(), if a weight is out of
  /// range on any rank, or if some losses of a step have weights and others have none. Inside
  /// no_sync() a weight out of range throws on its rank only, and nothing is added.
  void backward(const at::Tensor& loss, const BackwardOptions& options = {});

  /// Collective, blocking. May be called once, before the first backward. From now on `hook`
  /// (tessera/comm_hook.h; power_sgd_hook() in tessera/power_sgd.h) communicates gradients wherever
  /// the engine would, and the step uses the hook's result. Throws c10::Error on every rank if the
  /// hooks' name() or settings() differ between ranks, the hook refuses this engine, or gradients
  /// are split over ranks (zero2, zero3, a hybrid's `gradients` above 1), and on a GPU or under
  /// Reproducible::kAnyWorldSize. An exception of the hook on one rank ends the engine on all.
  /// docs/comm-hooks.md says what else changes.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  /// Local. Returns the loss to call backward on: `loss` multiplied by loss_scale(), which is 1
  /// without Options::loss_scale.
  at::Tensor scale(const at::Tensor& loss);
  double loss_scale() const;

  /// Acts as a backward with gradients that the user has computed: by torch::autograd::grad(), an
  /// adjoint solver, an evolution strategy. Each rank passes its own gradients, each under any name
  /// of its parameter. A parameter without an entry, or with an undefined tensor, is unused on this
  /// rank in this backward; `gradients` may be empty. Each gradient has its parameter's full shape,
  /// dtype and device, and is dense or sparse, with any strides. They are averaged over ranks and
  /// added to this step's gradients, with the bits that they would have had from backward.
  /// Parameters that are split are not gathered. Under Options::loss_scale pass gradients of a
  /// scaled loss: of scale(loss), or scale(gradient). `weight` is BackwardOptions::weight.
  ///
  /// Collective as a backward is: outside no_sync() all ranks call it; inside no_sync() it only
  /// adds locally and sends nothing. It runs one more all-gather (of one word) than a backward.
  /// Blocking; under asynchronous steps it waits for the last step and may throw that step's error.
  /// It must not be called inside micro_step() under Options::cuda_graphs.
  ///
  /// Throws c10::Error on every rank, with nothing added on any, naming the rank and every wrong
  /// gradient: an unknown name, another shape, dtype or device, memory that cannot be read, sparse
  /// elements outside the shape (not checked on a GPU), a frozen parameter, two gradients of one
  /// parameter. Also throws when called inside backward or modify_parameters(), after a `.grad` was
  /// assigned, or with a weight if the model has a SyncBatchNorm in training mode, whose backward
  /// has run without the weight. Inside no_sync() only the rank that finds the error throws; if it
  /// does not repeat the call, the next backward or step() that reduces throws on all ranks. In
  /// other respects it throws what a backward throws.
  void accumulate(const std::vector<NamedTensor>& gradients, std::optional<double> weight = {});

  /// Local, but all ranks must call it. Drops the gradients of this step, reduced or not.
  void zero_grad();
  /// Local. Returns true if there was a backward since the last step().
  bool has_gradients() const;

  /// Collective. Returns the batches of `loader` for a loop in which ranks have different numbers
  /// of them: `for (auto& batch : engine->join(*loader))`. JoinedBatches documents the loop.
  template <typename Loader>
  JoinedBatches<Loader> join(Loader& loader, JoinOptions options = {}) {
    return JoinedBatches<Loader>(loader, begin_join(std::move(options)));
  }

  /// Call it first in functions that are collective over the ranks of this engine and are not its
  /// members. In a loop over join() it throws c10::Error on every rank, naming `call`, if some rank
  /// has no batches left, because that rank cannot make the call. Elsewhere it does nothing.
  void begin_call(const char* call);

  /// Collective, blocking. Calls `evaluate_batch(batch, mean)` on each batch of this rank's
  /// `loader`, without autograd and in evaluation mode, and returns the mean over all ranks. If
  /// `evaluate_batch` throws on one rank, that rank throws the same, and the others throw
  /// c10::Error with its text. On GPUs, where ranks gather split parameters together, all ranks
  /// need the same number of batches or a full_parameters() scope; otherwise all throw c10::Error.
  /// Where ranks gather together, if `evaluate_batch` throws on one rank only, the other ranks
  /// throw CommError, at the latest at the time-out.
  template <typename Loader, typename EvaluateBatch>
  Mean evaluate(Loader& loader, EvaluateBatch&& evaluate_batch) {
    std::optional<decltype(loader.begin())> batch;
    const auto has_batch = [&] {
      batch.has_value() ? static_cast<void>(++*batch) : static_cast<void>(batch = loader.begin());
      return *batch != loader.end();
    };
    return evaluate_batches(has_batch, [&](Mean& mean) { evaluate_batch(**batch, mean); });
  }

  /// While the returned scope lives, backward adds whole gradients in this rank's memory and sends
  /// nothing. The first backward after the scope reduces their sum, together with its own
  /// gradients. Local. Scopes nest. Throws c10::Error under Reproducible::kAnyWorldSize.
  using NoSync = tessera::NoSync;
  [[nodiscard]] NoSync no_sync();

  /// Collective as a backward is. Calls `body`, which runs one forward and one backward. Under
  /// Options::cuda_graphs there is one graph for each position of a micro-step within a step: the
  /// first three calls at a position run `body`, the fourth captures it, and later calls replay the
  /// graph without calling `body`. So `body` must read its inputs from, and write its results (the
  /// loss) to, the same tensors each time; what it decides, counts or prints on the host happens in
  /// the first calls only; and it must not wait for the device (item(), copies to the host). Throws
  /// c10::Error that names what cannot be captured: a backward under no_sync(), none or more than
  /// one backward, a wait for the device.
  void micro_step(const std::function<void()>& body);

  /// Collective. Runs `write` on every rank without autograd, then gives all ranks the parameters
  /// of rank `from_rank`. The only way to write parameters outside step(): initialisation after
  /// parallelize, weight clipping, loading. `write` may be empty except on from_rank; the only call
  /// of the engine that it may make is gather().
  void modify_parameters(int from_rank, const std::function<void()>& write);

  /// Keeps parameters whole while it, or a copy of it, lives.
  using Scope = std::shared_ptr<void>;

  /// Collective. While the returned scope lives, every parameter is whole on every rank and may be
  /// read by any means (saving, raw pointers). step() inside it is an error. Takes memory for all
  /// parameters where they are split, and none where they are not. A scope may outlive the engine,
  /// but it does not make parameters readable after the engine's destruction.
  [[nodiscard]] Scope full_parameters();

  /// Local on CPUs, collective on GPUs. While the returned scope lives, the units of `module`'s
  /// parameters are whole on this rank and may be read by any means. step() inside it is an error.
  /// `module` is (part of) the model; throws c10::Error for one without parameters of this engine.
  [[nodiscard]] Scope gather(const torch::nn::Module& module);

  /// From begin_average() to end() the model is the average of its weights. Not thread-safe.
  class [[nodiscard]] AverageScope {
   public:
    /// Called by begin_average().
    explicit AverageScope(std::shared_ptr<internal::OpenAverage> open) : open_(std::move(open)) {}
    AverageScope(AverageScope&& other) noexcept = default;
    AverageScope(const AverageScope&) = delete;
    AverageScope& operator=(const AverageScope&) = delete;
    AverageScope& operator=(AverageScope&&) = delete;
    /// Local, so that an exception may leave the scope on one rank. If end() was not called, the
    /// engine's next collective call other than a backward ends the average on this rank.
    ~AverageScope();

    /// Collective, blocking. Gives the parameters their own values back, to the bit; where masters
    /// are a copy, by rounding the masters as a step does. If a full_parameters() or gather() scope
    /// is open on any rank, throws c10::Error on every rank, and the average stays. Throws
    /// c10::Error on every rank if a parameter was written inside the scope; then the engine can be
    /// used again only after load_state_dict(). Call it once.
    void end();

   private:
    std::shared_ptr<internal::OpenAverage> open_;
  };

  /// Collective, blocking. Until end() of the returned scope every parameter is its average
  /// (Options::average), rounded to the parameter's dtype, by whatever means it is read: operators,
  /// full_parameters(), gather(), parameter_hash(). Buffers stay: BatchNorm's statistics are those
  /// of the live weights, as in PyTorch. While the average is shown, step(), backward,
  /// modify_parameters() and all calls that save or load throw c10::Error on every rank; earlier
  /// gradients stay. Takes no memory; copies or swaps this rank's slices, and sends as many bytes
  /// as a step sends to distribute its updates.
  ///
  /// Throws c10::Error on every rank if there is no average or it has had no update yet, inside
  /// another such scope, inside a full_parameters() or gather() scope, and if a parameter was
  /// written outside modify_parameters(). If the engine is destroyed before end(), the parameters
  /// keep the average.
  AverageScope begin_average();

  /// Blocking. Local, except under asynchronous steps, where all ranks must call it. Waits for what
  /// the last step() has left in flight: parameters that are being all-gathered, and, under
  /// asynchronous steps, the step's result; if that is an error, wait() throws it. Operators wait
  /// for the parameters by themselves; call wait() before an access by raw pointer.
  void wait();
  /// Local. Returns the result of the last step(). Under asynchronous steps, returns the result of
  /// the step before it until wait() is called.
  const StepResult& last_result() const;
  /// Local. Returns the number of updates so far, including those of a loaded state. Under
  /// asynchronous steps the last update does not count until wait() is called.
  int64_t steps() const;
  /// Local. Returns the number that this rank's next backward will have among all micro-batches of
  /// the run; Options::reproducible says how they are numbered.
  int64_t micro_batch() const;

  /// Collective, blocking. From now on trains exactly the parameters that `trains` accepts, and
  /// sets their requires_grad. `trains` gets a parameter's first name, and the tensor if it takes
  /// one; `trains` must not read the tensor's values. Units, buffers and optimizer are rebuilt as
  /// in a new engine. Everything else is kept with its bits: values, masters, states, counts and
  /// averages of parameters that stay, loss scale, schedule, hyper-parameters in force. A parameter
  /// that starts to train starts as in a new engine: with states of zero or the algorithm's initial
  /// value, master and average equal to its value, in the first group of the plan that selects it.
  /// A parameter that is frozen keeps its value as the model shows it. Its state is dropped; under
  /// FrozenState::kReturned this rank's part of it is returned instead (otherwise the result is
  /// empty). load_state_dict() takes the returned state back once the parameter is trained again,
  /// if PartialState::may_lack accepts everything.
  ///
  /// References into parameters() and units() become invalid. Other references that the engine gave
  /// stay valid, such as optimizer()'s, so schedulers keep working. gather_counts() restarts at
  /// zero. No operator may read the model during the call, on any thread. CUDA graphs are captured
  /// again.
  ///
  /// Peak memory: what the engine holds before or after the call, whichever is more, plus this
  /// rank's 1/N of the state that stays or is returned (without values of parameters that are not
  /// split). While that state is put back, also one tensor of the largest unit. Parameters that are
  /// not split exist twice at first, while there is no optimizer. Sends 2(N-1)/N of the state. Does
  /// nothing if nothing changes.
  ///
  /// Throws c10::Error on every rank, with nothing changed: if there are gradients that no step()
  /// has used; inside backward, begin_average() or a full_parameters() or gather() scope; on
  /// another thread than parallelize(); if `trains` throws, accepts nothing or differs between
  /// ranks; if parameters were written, moved or registered; and for what parallelize() would
  /// refuse. A later error (out of memory) leaves no engine on any rank: other ranks and later
  /// calls throw CommError. Then parameters that are not split keep their values; others throw when
  /// read.
  StateDict set_trainable(const ParameterPredicate& trains,
                          FrozenState frozen = FrozenState::kDropped);

  /// Collective, blocking. Appends `group` to the OptimizerPlan. The group gets the parameters,
  /// trained or frozen, that it selects and that no other group has. Trained parameters keep their
  /// state; throws c10::Error if one would change its algorithm. Apart from that, effect, memory
  /// and errors are those of set_trainable(). Also throws for options that parallelize() would
  /// refuse, for a name that is taken, and for a group that selects no parameter or only parameters
  /// of other groups. LibTorch's schedulers that were made for fewer groups (ReduceLROnPlateau's
  /// minima) must be replaced by new ones.
  void add_group(OptimizerGroup group);

  /// Collective. Returns a copy of the run's state (see StateDict), without ignored parameters and
  /// buffers. Under kOneRank ranks other than `rank` get an empty StateDict. Throws c10::Error on
  /// every rank if parameters or buffers were added to or removed from the model since
  /// parallelize(), because the copy would not fit the model. kEveryRank sends 2(N-1)/N of the
  /// state on every rank, kOneRank half of that; both take temporary memory for this rank's part of
  /// the state and for the largest unit. kSharded sends only a check.
  [[nodiscard]] StateDict state_dict(StateScope scope, int rank = 0);

  /// Collective. Sets the run's state to `state`. Every rank passes what it has (everything,
  /// nothing, any pieces); together they must cover every entry of this engine and nothing else.
  /// Otherwise throws c10::Error on every rank that lists missing, unknown and differing entries,
  /// with nothing changed. If several ranks pass an element, the lowest rank's counts. Values with
  /// other strides are converted; another dtype is an error. Sends 2(N-1)/N of the state. Gradients
  /// of this step are dropped.
  /// `partial`, equal on all ranks, says what may be missing and what is left out.
  void load_state_dict(const StateDict& state, const PartialState& partial = {});

  /// Collective. Gives `sink` what state_dict(StateScope::kSharded) would copy: this rank's part of
  /// the state, a tensor at a time, from where it lies. Throws c10::Error on every rank as
  /// state_dict() does, and on this rank what `sink` throws, which harms neither the engine nor
  /// other ranks. Sends only a check.
  void write_state(StateSink& sink);
  /// Collective. Returns the entries that write_state() would announce to its sink, without ranges.
  /// Throws as write_state() does.
  std::vector<StateOutline> state_entries();

  /// Collective. As load_state_dict(), but each rank reads its own part of the state from `source`,
  /// a tensor at a time, directly to its place. Every rank's source has the same state, complete
  /// except for entries for which its StateSource::leaves() returns true. Throws c10::Error on
  /// every rank, with nothing changed, if entries are missing, unknown or differ, or if
  /// StateSource::problem_of() finds a problem on any rank. If read() throws after that, this rank
  /// throws the same, and every rank's engine is poisoned. Sends only checks.
  void read_state(StateSource& source, const PartialState& partial = {});

  Strategy strategy() const;
  const ParameterTable& parameters() const;
  ProcessGroup& group();
  /// Returns the numbers of ranks over which parameters, gradients and optimizer state are split.
  const Degrees& degrees() const;
  /// Returns the units (or buckets) that parameters are communicated in.
  const UnitPlan& units() const;

  /// Local. Returns counts of gathers and frees since the engine was made; zeros where parameters
  /// are not split.
  GatherCounts gather_counts() const;
  /// Local. The memory that this engine holds on this rank, by class. Other memory of the run (the
  /// copies that Checkpoints writes from) may be added to it.
  const MemoryMeter& memory() const;
  MemoryMeter& memory();
  /// Local. Returns what the engine is and has done on this rank.
  Report report() const;

 private:
  friend MemoryBytes predicted_memory(const Engine& engine, int micro_steps);
  friend MemoryBytes predicted_peak_memory(const Engine& engine, int micro_steps);
  friend uint64_t parameter_hash(Engine& engine);
  friend const Trace* trace_of(const Engine& engine);

  JoinScope begin_join(JoinOptions options);
  Mean evaluate_batches(const std::function<bool()>& has_batch,
                        const std::function<void(Mean&)>& run_batch);

  std::unique_ptr<internal::RebuildableEngine> implementation_;
};

/// Local. Returns memory_formula() of `engine`, for `micro_steps` backwards per step.
MemoryBytes predicted_memory(const Engine& engine, int micro_steps);

/// Local. Returns memory_peak_formula() of `engine`, for `micro_steps` backwards per step.
MemoryBytes predicted_peak_memory(const Engine& engine, int micro_steps);

/// Collective. Returns a hash over the names and values of all parameters in registration order and
/// logical element order; equal values give equal hashes whatever the strategy and world size.
/// Throws c10::Error naming the first rank that differs from rank 0.
uint64_t parameter_hash(Engine& engine);

/// Local. Returns the trace of this rank, which the engine owns; null unless Options::trace.
const Trace* trace_of(const Engine& engine);

}  // namespace tessera

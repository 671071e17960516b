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
class CurrentEngine;
struct OpenAverage;
}  // namespace internal

struct OptimizerGroup;
class CommHook;
class ProcessGroup;
class Trace;

/// What becomes of the optimizer's state of parameters that Engine::set_trainable() freezes.
enum class FrozenState : uint8_t { kDropped, kReturned };

/// Trains one model on the ranks of a process group. Made by parallelize() (tessera/parallelize.h).
/// The loop is the user's own: forward, loss.backward(), engine->step(). Gradients are the mean
/// over ranks and the sum over backwards since the last step, or what backward() with weights says.
///
/// Where parameters are split (zero3, hybrids), an operator that reads a parameter finds it whole,
/// in forward, backward and recomputation. Between uses its memory is freed, and any other access
/// (raw pointers, torch::save) throws an error that names the unit; make such accesses inside
/// gather() or full_parameters(). On CPUs a rank gathers without its peers taking part, so ranks
/// may take different branches or evaluate alone; on GPUs gathers are collective, and all ranks use
/// units in the same order, in evaluation too.
///
/// Collective calls are made by every rank in the same order: backward and accumulate() outside
/// no_sync() (their reductions), and what says "Collective" below. Backward runs on the thread that
/// made the engine. Any thread may make the other calls (on a GPU with the group's device as its
/// current one): one at a time, and not during a backward. Several engines may live in one process
/// (a GAN), each used in the same order on all ranks.
///
/// A function that the engine runs inside a call (a schedule, a predicate, ask_non_finite, a sink)
/// must not make a call that concerns training or state: it throws c10::Error.
///
/// Errors: wrong use throws c10::Error. A failed collective throws CommError and poisons the engine
/// (every later call throws that error), and so does an exception on one rank in a collective part
/// of a call that the other ranks cannot finish without it. A backward that reduces throws
/// c10::Error on all ranks if a parameter was written on one of them since the last step, outside
/// modify_parameters() (by another optimizer, say), as far as version counters and first elements
/// show it; the gradients are valid then, and modify_parameters() makes the parameters equal again.
/// Under asynchronous steps the next step() throws it; a second backward before ends the engine.
/// A non-finite gradient makes step() throw c10::Error on all ranks with nothing applied (or the
/// step is skipped, as Options::on_non_finite says), and so do ranks that differ in what they have
/// reduced or dropped, in backward and in each step() after it, until they call zero_grad().
/// Under Options::asynchronous_step (the default on a GPU) what a step refuses is thrown by the
/// next step() or by wait(), and the gradients since then are dropped.
///
/// Destroying an engine is local: its hooks are removed; the parameters stay whole in memory of
/// their own, or, where they are split, throw when they are read. In a child of fork(), calls on an
/// inherited engine throw CommError, and reading its parameters throws c10::Error.
class Engine final {
 public:
  /// parallelize() calls it.
  explicit Engine(std::unique_ptr<internal::CurrentEngine> implementation);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Collective. Finishes reductions, agrees with all ranks to commit, clips, updates,
  /// all-gathers new parameters and clears the gradients. Throws c10::Error without a backward
  /// since the last step, when ranks disagree, on non-finite gradients, when a parameter was
  /// written or re-assigned outside modify_parameters(), and (checked in steps 1, 2, 4, 8, ...)
  /// when trainable parameters were added to or removed from the model since parallelize.
  StepResult step();

  /// For learning rate schedulers and for reading or changing hyper-parameters (to the same values
  /// on all ranks). Its step() throws. Its zero_grad() has the effect of Engine::zero_grad() at the
  /// next backward or step.
  torch::optim::Optimizer& optimizer();

  /// The learning rate of the update that follows `step` others, for the parameters of `group`:
  /// "defaults" or the OptimizerGroup's name, as in StateDict.
  using Schedule = std::function<double(int64_t step, std::string_view group)>;

  /// Local, with the same function on all ranks. From now on each update takes its rates from it:
  /// step() sets them, or under Options::optimizer_in_backward the first gradient. `step` is the
  /// number of updates applied so far (StepResult::step), 0 at the first. Skipped steps do not
  /// count, and load_state_dict() sets the count, so a schedule has nothing to save; it must depend
  /// on its arguments only. An empty function ends the schedule; the rates stay.
  ///
  /// step() throws c10::Error on all ranks, with nothing applied, if the function throws, if rates
  /// are out of range or differ between ranks, and if something else has changed a rate since (a
  /// scheduler of LibTorch).
  void set_schedule(Schedule rate);
  /// The same rate for all groups: rate(step).
  template <typename Rate>
  requires std::is_invocable_r_v<double, Rate&, int64_t>
  void set_schedule(Rate rate) {
    set_schedule(Schedule([rate = std::move(rate)](int64_t step, std::string_view) mutable {
      return static_cast<double>(rate(step));
    }));
  }

  /// Collective as loss.backward() is: scale(loss).backward(), for a loss with a weight
  /// (BackwardOptions::weight): where ranks or micro-steps have different numbers of samples, or
  /// tokens. Where gradients are sent or summed in fp16, the first weighted backward of a step,
  /// inside no_sync() too, is a collective of its own that agrees on a unit of weight. If `loss`
  /// has weight 0, it may be undefined or have no graph.
  ///
  /// Throws c10::Error on every rank, and so does step() until zero_grad(), if a weight is out of
  /// range on any (inside no_sync() only there, with nothing added), and if some losses of a step
  /// have weights and others have none.
  void backward(const at::Tensor& loss, const BackwardOptions& options = {});

  /// Collective, blocking; once, before the first backward. From now on `hook`
  /// (tessera/comm_hook.h; power_sgd_hook() in tessera/power_sgd.h) communicates gradients instead
  /// of the engine, wherever the engine would: its result is what the step uses. Throws c10::Error
  /// on every rank where ranks give hooks of another name() or settings(), the hook refuses this
  /// engine, gradients are split over ranks (zero2, zero3, a hybrid's `gradients` above 1), or on a
  /// GPU. An exception of the hook on one rank ends the engine on all. docs/comm-hooks.md says what
  /// else changes.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  /// Local. The loss to call backward on: `loss`, times loss_scale() under Options::loss_scale.
  at::Tensor scale(const at::Tensor& loss);
  double loss_scale() const;

  /// A backward whose gradients the user has computed: by torch::autograd::grad(), an adjoint
  /// solver, an evolution strategy. Each rank gives its own, by any of a parameter's names; a
  /// parameter that it does not name, or gives an undefined tensor, is unused on this rank in this
  /// backward, and `gradients` may be empty. They have the parameter's full shape, its dtype and
  /// device; dense or sparse, any strides. They are averaged over ranks and added to what this step
  /// has, with the bits that they would have had from backward. Where parameters are split nothing
  /// is gathered. Under Options::loss_scale give gradients of a scaled loss: of scale(loss), or
  /// scale(gradient). `weight` is BackwardOptions::weight.
  ///
  /// Collective as a backward is: outside no_sync() all ranks call it, inside it only adds locally
  /// and sends nothing. Beside what a backward exchanges it takes an all-gather of one word.
  /// Blocking; under asynchronous steps it waits for the last step and may throw its error. Not
  /// inside micro_step() under Options::cuda_graphs.
  ///
  /// Throws c10::Error on every rank, with nothing added on any, that names the rank and every
  /// wrong gradient: an unknown name, another shape, dtype or device, memory that cannot be read, a
  /// frozen parameter, two gradients of one parameter; also when it is called inside backward or
  /// modify_parameters(), or a `.grad` was assigned. Inside no_sync() only the rank that finds the
  /// error throws; if it does not repeat the call, the next backward or step() that reduces throws
  /// on all ranks. Otherwise it throws what a backward does.
  void accumulate(const std::vector<NamedTensor>& gradients, std::optional<double> weight = {});

  /// Local, but all ranks must call it. Drops the gradients of this step, reduced or not.
  void zero_grad();
  /// Local. Whether there was a backward since the last step().
  bool has_gradients() const;

  /// Collective. The batches of `loader`, for ranks that have different numbers of them: `for
  /// (auto& batch : engine->join(*loader))`. JoinedBatches says what holds in the loop.
  template <typename Loader>
  JoinedBatches<Loader> join(Loader& loader, JoinOptions options = {}) {
    return JoinedBatches<Loader>(loader, begin_join(std::move(options)));
  }

  /// For functions that are collective over the ranks of this engine and not its own, before
  /// anything else that they do. In a loop over join() it throws c10::Error on every rank, in the
  /// name of `call`, if a rank without batches follows, which cannot make that call; elsewhere it
  /// does nothing.
  void begin_call(const char* call);

  /// Collective, blocking. Each rank calls `evaluate_batch(batch, mean)` on the batches of its own
  /// `loader`, without autograd and in evaluation mode; returns the mean over all ranks. What that
  /// throws on one rank, all throw. Where ranks gather split parameters together (GPUs), they need
  /// equally many batches or a full_parameters() scope, else all throw c10::Error.
  template <typename Loader, typename EvaluateBatch>
  Mean evaluate(Loader& loader, EvaluateBatch&& evaluate_batch) {
    std::optional<decltype(loader.begin())> batch;
    const auto has_batch = [&] {
      batch.has_value() ? static_cast<void>(++*batch) : static_cast<void>(batch = loader.begin());
      return *batch != loader.end();
    };
    return evaluate_batches(has_batch, [&](Mean& mean) { evaluate_batch(**batch, mean); });
  }

  /// While the returned scope lives, backward adds gradients locally (full-size memory) and sends
  /// nothing; the first backward outside it reduces the local sum. Local. Scopes nest.
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
  /// read by any means (saving, raw pointers). step() inside it is an error. Costs no memory where
  /// parameters are not split, their full size elsewhere. A scope may outlive the engine, but
  /// parameters must not be read through it then.
  [[nodiscard]] Scope full_parameters();

  /// Local on CPUs, collective on GPUs. While the returned scope lives, the units of `module`'s
  /// parameters are whole on this rank and may be read by any means. step() inside it is an error.
  /// `module` is (part of) the model; throws c10::Error for one without parameters of this engine.
  [[nodiscard]] Scope gather(const torch::nn::Module& module);

  /// The model is the average of its weights from begin_average() to end(). Not thread-safe.
  class [[nodiscard]] AverageScope {
   public:
    /// begin_average() calls it.
    explicit AverageScope(std::shared_ptr<internal::OpenAverage> open) : open_(std::move(open)) {}
    AverageScope(AverageScope&& other) noexcept = default;
    AverageScope(const AverageScope&) = delete;
    AverageScope& operator=(const AverageScope&) = delete;
    AverageScope& operator=(AverageScope&&) = delete;
    /// Local, as when an exception leaves the scope on one rank: without end(), the engine's next
    /// collective call but a backward ends the average on this rank.
    ~AverageScope();

    /// Collective, blocking. The parameters have their own values again, to the bit; where masters
    /// are a copy, they are rounded from them as in a step. Throws c10::Error on every rank, and
    /// the average goes on, while a full_parameters() or gather() scope is open on any. Throws
    /// c10::Error on every rank if a parameter was written inside: the engine can be used again
    /// after load_state_dict(). Once only.
    void end();

   private:
    std::shared_ptr<internal::OpenAverage> open_;
  };

  /// Collective, blocking. Until end() of the returned scope every parameter is its average
  /// (Options::average), rounded to the parameter's dtype, by whatever means it is read: operators,
  /// full_parameters(), gather(), parameter_hash(). Buffers stay: BatchNorm's statistics are those
  /// of the live weights, as in PyTorch. Inside, step(), backward, modify_parameters() and all
  /// calls that save or load throw c10::Error on every rank; gradients of before stay. Takes no
  /// memory; copies or exchanges this rank's slices, and sends what a step sends to show updates.
  ///
  /// Throws c10::Error on every rank without an average, before its first update, inside another
  /// such scope, in a full_parameters() or gather() scope, and if a parameter was written outside
  /// modify_parameters(). Destroying the engine inside leaves the model the average.
  AverageScope begin_average();

  /// Blocking. Local, except under asynchronous steps, where all ranks must call it. Waits for what
  /// the last step() has left in flight: parameters that are being all-gathered, and under
  /// asynchronous steps its result, whose errors it throws. Operators wait by themselves; call it
  /// before an access by raw pointer.
  void wait();
  /// Local. The result of the last step(); under asynchronous steps, until wait(), of the one
  /// before.
  const StepResult& last_result() const;
  /// Local. Updates applied so far, those of a loaded state included; under asynchronous steps,
  /// until wait(), without the last.
  int64_t steps() const;
  /// Local. The number of this rank's next backward among all of the run; Options::reproducible.
  int64_t micro_batch() const;

  /// Collective, blocking. From now on exactly the parameters are trained that `trains` accepts, by
  /// their first name, or that and the tensor, whose values may not be read; it sets requires_grad.
  /// Units, buffers and optimizer are built anew, as in an engine made now, and everything moves
  /// there with its bits: values, masters, states, counts and averages of what stays, loss scale,
  /// schedule, hyper-parameters in force. A parameter that begins to train begins as in a new
  /// engine: states zero or what the algorithm begins with, master and average as its value; it is
  /// in the first group of the plan that selects it. One that is frozen keeps its value, as the
  /// model shows it, and its state is dropped, or under FrozenState::kReturned what this rank had
  /// of it is returned (else nothing is): load_state_dict() takes it back, with everything accepted
  /// by PartialState::may_lack, once the parameter is trained again.
  ///
  /// References that the engine gave stay valid, also of optimizer(), so schedulers go on; what was
  /// reached through parameters() and units() is gone, and gather_counts() begins at zero. No
  /// operator may read the model meanwhile, on any thread. CUDA graphs are captured anew.
  ///
  /// Peak: beside what the engine holds, or will, this rank's 1/N of the state that stays or is
  /// returned (without values of parameters that are not split), and, while it is put back, one
  /// tensor of the largest unit's; parameters that are not split are there twice at first, while no
  /// optimizer is. Sends 2(N-1)/N of the state. Nothing is done where nothing changes.
  ///
  /// Throws c10::Error on every rank, with nothing changed: with gradients that no step() has
  /// taken, inside backward, begin_average() or a full_parameters() or gather() scope, on another
  /// thread than parallelize(), if `trains` throws, accepts nothing or differs between ranks, if
  /// parameters were written, moved or registered, and for what parallelize() would refuse. An
  /// error after that (no memory) leaves no engine on any rank: other ranks and later calls throw
  /// CommError. Parameters that are not split keep their values then; split ones throw when read.
  StateDict set_trainable(const ParameterPredicate& trains,
                          FrozenState frozen = FrozenState::kDropped);

  /// Collective, blocking. As if the OptimizerPlan had had `group` as its last: of the parameters
  /// that no other group selects it has, trained or frozen, those that it selects. What is trained
  /// keeps its state; with another algorithm than it had, c10::Error. Otherwise as set_trainable(),
  /// also in memory and errors; refused as well are options that parallelize() would refuse, a name
  /// that is taken and a group that selects nothing, or nothing but what other groups have.
  /// Schedulers of LibTorch that were made for fewer groups (ReduceLROnPlateau's minima) must be
  /// made anew.
  void add_group(OptimizerGroup group);

  /// Collective. The state of the run (see StateDict). Under kOneRank ranks other than `rank` get
  /// an empty one. Values are copies. What is ignored is not in it. Throws c10::Error on every
  /// rank if parameters or buffers were added or removed since parallelize, because they would be
  /// missing in it. kEveryRank sends 2(N-1)/N of the state on every rank, kOneRank half of that;
  /// both take temporary memory for this rank's part of the state and for the largest unit.
  /// kSharded sends only a check.
  [[nodiscard]] StateDict state_dict(StateScope scope, int rank = 0);

  /// Collective. Makes the state of the run what `state` says: every rank passes what it has
  /// (everything, nothing, any pieces); together they must cover every entry of this engine and
  /// nothing else. Throws c10::Error on every rank that lists missing, unknown and differing
  /// entries, with nothing changed. Where ranks pass the same element, the lowest rank's counts.
  /// Values with other strides are converted; another dtype is an error. Sends 2(N-1)/N of the
  /// state. Gradients of this step are dropped.
  /// `partial`, equal on all ranks, says what may be missing and what is left out.
  void load_state_dict(const StateDict& state, const PartialState& partial = {});

  /// Collective. Gives `sink` what state_dict(StateScope::kSharded) would copy: this rank's part of
  /// the state, a tensor at a time, from where it lies. Throws c10::Error on every rank as
  /// state_dict() does, and on this rank what `sink` throws; that harms neither the engine nor
  /// other ranks. Sends only a check.
  void write_state(StateSink& sink);
  /// The entries that `sink` would be told of, without ranges. Collective; throws as write_state().
  std::vector<StateOutline> state_entries();

  /// Collective. As load_state_dict(), of a state that each rank reads for itself: this rank's part
  /// of it, a tensor at a time, straight to where it lies. Every rank's source has the same state,
  /// whole but for what StateSource::leaves(). Throws c10::Error on every rank, with nothing
  /// changed, if entries are missing, unknown or differ, or as StateSource::problem_of() says on
  /// any rank. What read() throws after that, this rank throws, and every rank's engine is
  /// poisoned. Sends only checks.
  void read_state(StateSource& source, const PartialState& partial = {});

  Strategy strategy() const;
  const ParameterTable& parameters() const;
  ProcessGroup& group();
  /// Over how many ranks each kind of state is split.
  const Degrees& degrees() const;
  /// The units (or buckets) that parameters are communicated in.
  const UnitPlan& units() const;

  /// What was gathered since the engine was made; zeros where parameters are not split. Local.
  GatherCounts gather_counts() const;
  /// Memory this engine holds on this rank, by class. Local. What belongs to the run besides (the
  /// copies that Checkpoints writes from) may be added to it.
  const MemoryMeter& memory() const;
  MemoryMeter& memory();
  /// Local. What it is and has done on this rank.
  Report report() const;

 private:
  friend MemoryBytes predicted_memory(const Engine& engine, int micro_steps);
  friend MemoryBytes predicted_peak_memory(const Engine& engine, int micro_steps);
  friend uint64_t parameter_hash(Engine& engine);
  friend const Trace* trace_of(const Engine& engine);

  JoinScope begin_join(JoinOptions options);
  Mean evaluate_batches(const std::function<bool()>& has_batch,
                        const std::function<void(Mean&)>& run_batch);

  std::unique_ptr<internal::CurrentEngine> implementation_;
};

/// Local. memory_formula() of `engine`, for `micro_steps` backwards per step.
MemoryBytes predicted_memory(const Engine& engine, int micro_steps);

/// Local. memory_peak_formula() of it.
MemoryBytes predicted_peak_memory(const Engine& engine, int micro_steps);

/// Collective. A hash over the names and values of all parameters in registration order and logical
/// element order; equal values give equal hashes whatever the strategy and world size. Throws
/// c10::Error naming the first rank that differs from rank 0.
uint64_t parameter_hash(Engine& engine);

/// What this rank did when; null unless Options::trace. The engine owns it. Local.
const Trace* trace_of(const Engine& engine);

}  // namespace tessera

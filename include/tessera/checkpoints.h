#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "tessera/checkpoint.h"
#include "tessera/distributed_sampler.h"

namespace torch::optim {
class LRScheduler;
}  // namespace torch::optim

namespace tessera {

namespace internal {
class Tracked;
}  // namespace internal

/// When a run saves, and what it keeps. Equal on all ranks.
struct CheckpointsOptions {
  /// Steps between two saves of after_step(); 0: it saves only when the run is to end.
  int64_t every = 0;
  /// After a save older steps are deleted, except the newest `keep`, those whose number is a
  /// multiple of `keep_every`, and always one that is known to be whole. 0: nothing is deleted.
  int64_t keep = 3;
  int64_t keep_every = 0;  ///< 0: none
  /// A save copies this rank's part of the state, and a thread writes the copy while training goes
  /// on. The copy takes 1/N of the state's memory, kept from the first save on
  /// (MemoryClass::kHost). false: a save writes from where the state lies; so it does, with a
  /// warning, if a rank cannot start the thread.
  bool asynchronous = true;
  /// A failed save throws in the next after_step(), save() or finish() on all ranks. false: rank 0
  /// reports it on stderr, and training goes on.
  bool stop_on_error = true;
  std::map<std::string, std::string> notes = {};  ///< SaveOptions::notes
  bool group_access = false;                      ///< SaveOptions::group_access
  /// SaveOptions::files, for load() too. The saving thread may use it at the same time as the
  /// training thread.
  std::shared_ptr<FileSystem> files = nullptr;
};

/// The checkpoints of one run: what they contain, when they are saved, and how the run resumes.
///
///     tessera::Checkpoints checkpoints(*engine, "runs/a", {.every = 500});
///     checkpoints.track("data", sampler).track("random", at::detail::getDefaultCPUGenerator());
///     checkpoints.load();  // goes on where the run was, if it was
///     tessera::StopRequest stop;  // SIGTERM
///     for (int64_t epoch = sampler.epoch(); epoch < epochs; ++epoch) {
///       sampler.set_epoch(epoch);
///       for (auto& batch : *loader) {
///         loss(batch).backward();
///         engine->step();
///         sampler.advance();
///         if (checkpoints.after_step(stop.is_requested())) return 0;  // saved
///       }
///     }
///     checkpoints.finish();
///
/// In a child of fork() calls throw c10::Error.
///
/// One save is under way at a time: the next one waits for it. No other job, and no other object,
/// may save into the directory meanwhile. All calls but durable_step() belong to the thread that
/// trains, between steps, and are collective unless they say otherwise; a call that one rank leaves
/// by an error of its own, or where a rank dies, throws CommError on the others.
class Checkpoints final {
 public:
  /// Collective, blocking. Makes `directory` as save_checkpoint() does, locks it and checks that it
  /// can be written and that all ranks see it. Throws c10::Error on every rank if not, if another
  /// job holds it, and if something in the engine's state or the notes (a name, a dtype) cannot be
  /// saved. `engine` must outlive this.
  Checkpoints(Engine& engine, const std::string& directory, CheckpointsOptions options = {});
  /// Local. Waits for a save that is under way, as exit() does; its error is only a line on stderr.
  /// During stack unwinding it poisons the world, as a ProcessGroup's does.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // --- What a run is made of, beside the engine ---
  // Local; on all ranks alike, before load(). What is tracked by reference must outlive this. A
  // name is used once.

  /// Which samples have been consumed. A save throws c10::Error on every rank where ranks differ,
  /// and warns once where steps were made, batches given out and none advanced over.
  Checkpoints& track(const std::string& name, const data::DistributedSampler& sampler);
  /// The state of each rank's generator. Loaded on another number of ranks every generator is
  /// seeded from rank 0's saved seed, the rank and the step, and rank 0 says so on stderr: training
  /// goes on with other random numbers.
  Checkpoints& track(const std::string& name, const at::Generator& generator);
  /// Saves rank 0's value; loads it on all ranks into the tensor that `tensor` is then, which keeps
  /// its sizes, dtype and device. Throws c10::Error unless it is dense and writable, without
  /// elements that share memory, and not made in InferenceMode.
  Checkpoints& track(const std::string& name, at::Tensor& tensor);
  Checkpoints& track(const std::string& name, int64_t& number);
  Checkpoints& track(const std::string& name, double& number);
  Checkpoints& track(const std::string& name, std::string& text);

  /// State of the program's own: `save` returns it, `load` gets it back. Names get the prefix
  /// "<name>/" in the checkpoint. If `load` throws, load() throws on all ranks, after the engine
  /// has been loaded.
  struct Functions {
    std::function<CheckpointExtras()> save;
    std::function<void(const CheckpointExtras&)> load;
  };
  Checkpoints& track(const std::string& name, Functions functions);

  // --- Loading ---

  /// Blocking. Loads as load_checkpoint() does, and also what is tracked. Also throws c10::Error on
  /// every rank, with nothing changed, if something tracked is missing in the checkpoint, unknown,
  /// or of another kind. If newer steps are left, because options.step is older or they are
  /// damaged, the next save sets them aside, as "step-<N>.replaced-<nonce>".
  std::optional<LoadedCheckpoint> load(const LoadOptions& options = {});
  /// Local. Call it instead of load() to begin the run from the start: the next save sets existing
  /// steps aside. If the directory has steps, a save without load() or start_over() is an error.
  void start_over();

  // --- Saving ---

  /// Call it after each step. Saves if options.every says so, and reports an earlier save that has
  /// failed. Returns true if any rank has passed `stop`: the step is then saved and durable, and
  /// the run should end. (With stop_on_error = false that save may have failed: see
  /// durable_step().) Costs one small exchange between ranks; over NCCL only every 16th call has
  /// one, so a stop may take 16 steps.
  bool after_step(bool stop = false);
  /// Saves the present step: returns when it is durable, or under options.asynchronous once it is
  /// copied. No effect if the present step is saved already.
  void save();
  /// Blocking. Waits for a save that is under way, and reports it.
  void finish();

  /// Local, from any thread. The newest step that this object has saved and that survives a kill
  /// and a power failure; -1 while there is none.
  int64_t durable_step() const;

 private:
  class Run;

  Checkpoints& add(const std::string& name, std::unique_ptr<internal::Tracked> thing);

  std::unique_ptr<Run> run_;
};

/// Local. LibTorch's schedulers cannot be saved. Call it after Checkpoints::load(), on all ranks,
/// with a new scheduler of engine.optimizer() that has been stepped `steps` times in the run that
/// was saved: it is stepped that often, and the rates are put back. Engine::set_schedule() needs
/// nothing like it.
void step_forward(torch::optim::LRScheduler& scheduler, Engine& engine, int64_t steps);

}  // namespace tessera

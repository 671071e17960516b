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

/// Options of Checkpoints: when a run saves, and which steps it keeps. Must be equal on all ranks.
struct CheckpointsOptions {
  /// Number of steps between two saves by after_step(); 0: after_step() saves only if its argument
  /// `stop` is true on some rank.
  int64_t every = 0;
  /// A save deletes older steps. It keeps the newest `keep` steps, those whose number is a multiple
  /// of `keep_every`, and in any case one step that is known to be whole. If `keep` is 0, nothing
  /// is deleted.
  int64_t keep = 3;
  int64_t keep_every = 0;  ///< see `keep`; 0: no step is kept because of its number
  /// If true, a save copies this rank's part of the state, and a thread writes the copy while
  /// training goes on. On N ranks each rank's copy takes 1/N of the state's size, and its memory is
  /// kept from the first save on (MemoryClass::kHost). If false, or (with a warning) if a rank
  /// cannot start the thread, a save writes directly from the state's memory.
  bool asynchronous = true;
  /// If true, a failed save throws in the next after_step(), save() or finish() on all ranks. If
  /// false, rank 0 reports the failure on stderr, and training goes on.
  bool stop_on_error = true;
  std::map<std::string, std::string> notes = {};  ///< SaveOptions::notes
  bool group_access = false;                      ///< SaveOptions::group_access
  /// SaveOptions::files; load() uses it, too. The saving thread may use it at the same time as the
  /// training thread.
  std::shared_ptr<FileSystem> files = nullptr;
};

/// The checkpoints of one run: what they contain, when they are saved, and how the run resumes.
///
///     tessera::Checkpoints checkpoints(*engine, "runs/a", {.every = 500});
///     checkpoints.track("data", sampler).track("random", at::detail::getDefaultCPUGenerator());
///     checkpoints.load();  // continues the run if it was saved before
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
/// One save is under way at a time: the next one waits for it. While this object lives, no other
/// job and no other object may save into the directory. All calls but durable_step() belong to the
/// thread that trains, between steps, and are collective unless they say otherwise; if one rank
/// leaves a collective call with an error that only this rank has, or dies, the call throws
/// CommError on the others.
class Checkpoints final {
 public:
  /// Collective, blocking. Makes `directory` as save_checkpoint() does, locks it and checks that it
  /// can be written and that all ranks see it. Throws c10::Error on every rank if one of these
  /// fails, if another job holds the lock, and if something in the engine's state or the notes (a
  /// name, a dtype) cannot be saved. `engine` must outlive this.
  Checkpoints(Engine& engine, const std::string& directory, CheckpointsOptions options = {});
  /// Local. Waits for a save that is under way, as exit() does; if that save fails, the error is
  /// only printed on stderr. During stack unwinding it poisons the world, as the destructor of a
  /// ProcessGroup does.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // --- State of the run besides the engine's ---
  // Local. Call track() on all ranks alike, before load(). Objects tracked by reference must
  // outlive this. A name may be used only once.

  /// Tracks which samples have been consumed. A save throws c10::Error on every rank if the
  /// samplers differ between ranks. If steps were made and the sampler gave out batches, but
  /// advance() was never called, a save warns once.
  Checkpoints& track(const std::string& name, const data::DistributedSampler& sampler);
  /// Tracks the state of each rank's generator. When a checkpoint is loaded on another number of
  /// ranks, every generator is seeded from rank 0's saved seed, the rank and the step. Training
  /// then goes on with other random numbers, and rank 0 says so on stderr.
  Checkpoints& track(const std::string& name, const at::Generator& generator);
  /// Tracks a variable of the program. A save takes rank 0's value; load() gives it to all ranks.
  /// If the variable is a tensor, load() copies the saved value into the tensor that the variable
  /// then holds; that tensor keeps its sizes, dtype and device. Throws c10::Error unless the tensor
  /// is dense and writable, without elements that share memory, and not made in InferenceMode.
  Checkpoints& track(const std::string& name, at::Tensor& tensor);
  Checkpoints& track(const std::string& name, int64_t& number);
  Checkpoints& track(const std::string& name, double& number);
  Checkpoints& track(const std::string& name, std::string& text);

  /// Tracks other state of the program: `save` returns it, `load` gets it back. In the checkpoint
  /// its names have the prefix "<name>/". If `load` throws, load() throws on all ranks, after the
  /// engine has been loaded.
  struct Functions {
    std::function<CheckpointExtras()> save;
    std::function<void(const CheckpointExtras&)> load;
  };
  Checkpoints& track(const std::string& name, Functions functions);

  // --- Loading ---

  /// Blocking. Loads the engine's state as load_checkpoint() does, and the tracked state. Also
  /// throws c10::Error on every rank, with nothing changed, if something that is tracked is missing
  /// in the checkpoint or of another kind there, or if the checkpoint has something that is not
  /// tracked. If the directory has steps newer than the loaded one, because options.step asks for
  /// an older one or the newer ones are damaged, the next save renames the newer ones to
  /// "step-<N>.replaced-<nonce>".
  std::optional<LoadedCheckpoint> load(const LoadOptions& options = {});
  /// Local. Call it instead of load() to begin the run from the start: the next save renames
  /// existing steps, as described for load(). If the directory has steps, a save without load() or
  /// start_over() is an error.
  void start_over();

  // --- Saving ---

  /// Call it after each step. Saves if options.every says so, and reports an earlier save that has
  /// failed. Returns true if `stop` is true on any rank: the step is then saved and durable, and
  /// the run should end. (With stop_on_error = false that save may have failed: see
  /// durable_step().) Costs one small exchange between ranks. Over NCCL only every 16th call makes
  /// this exchange, so a stop may take 16 steps.
  bool after_step(bool stop = false);
  /// Saves the present step: returns when it is durable, or under options.asynchronous once it is
  /// copied. No effect if the present step is saved already.
  void save();
  /// Blocking. Waits for a save that is under way, and reports its failure, if any.
  void finish();

  /// Local; any thread may call it. Returns the newest step that this object has saved and that
  /// survives a kill and a power failure; -1 while there is no such step.
  int64_t durable_step() const;

 private:
  class Run;

  Checkpoints& add(const std::string& name, std::unique_ptr<internal::Tracked> thing);

  std::unique_ptr<Run> run_;
};

/// Local. Calls scheduler.step() `steps` times, then restores the learning rates. This brings a new
/// scheduler to the position that the scheduler of a saved run had; LibTorch's schedulers
/// themselves cannot be saved. Call it after Checkpoints::load(), on all ranks, with a new
/// scheduler of engine.optimizer() and the number of times that the saved run had stepped its
/// scheduler. Engine::set_schedule() needs nothing like it.
void step_forward(torch::optim::LRScheduler& scheduler, Engine& engine, int64_t steps);

}  // namespace tessera

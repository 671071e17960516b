#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera {

class ProcessGroup;

/// The gradients of one bucket, which a CommHook communicates: the sum over this rank's backwards
/// since the last reduction (several under Engine::no_sync()), zeros for parameters without a
/// gradient, multiplied by the loss scale under Options::loss_scale. Corresponds to c10d's
/// GradBucket.
struct GradBucket {
  size_t index = 0;  ///< of the bucket in Engine::units(). Buckets come in this order in the first
                     ///< backward; for later ones see Options::reorder_reductions
  /// True for the last of the model's buckets in this backward. Buckets that come later hold second
  /// gradients of a parameter (re-entrant checkpointing).
  bool is_last = false;
  std::string_view name;  ///< "bucket 0"; a tag for collectives; valid during the call
  at::Tensor buffer;      ///< [numel], the communication dtype; may be written. Gradients begin on
                          ///< multiples of 64 elements; gaps between them are ignored
  std::vector<at::Tensor> gradients;   ///< views of `buffer` with the parameters' shapes
  std::vector<at::Tensor> parameters;  ///< to which `gradients` belong; read-only
  std::vector<std::string> names;      ///< the parameters' first names
  double divisor = 1.0;  ///< what a sum over ranks is divided by: the number of ranks, or
                         ///< Options::gradient_divide_factor
};

/// Communicates gradients in place of the engine's all-reduce: Engine::register_comm_hook(). One
/// object per engine and rank, used by one thread at a time.
class CommHook {
 public:
  /// A parameter whose gradients the hook will get.
  struct Trained {
    std::string name;
    at::Tensor parameter;
    at::ScalarType dtype;  ///< of its gradients in the bucket
  };
  /// Parameters and options that a hook is prepared for.
  struct Setting {
    std::vector<std::vector<Trained>> buckets;  ///< in the order of GradBucket::index
    bool has_loss_scale = false;                ///< Options::loss_scale
  };
  /// A tensor of the state that a hook keeps from step to step.
  struct State {
    std::string name;   ///< unique in the hook; "comm_hook.<name()>.<name>" in a StateDict
    at::Tensor tensor;  ///< on the CPU; loading writes this memory, or fills it with zeros if the
                        ///< loaded state lacks this entry (PartialState)
    std::string parameter;  ///< name of the parameter that it belongs to; "" for none
  };

  virtual ~CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;

  /// Equal on all ranks.
  virtual std::string name() const = 0;
  /// Returns, as text, the settings that must be equal on all ranks.
  virtual std::string settings() const { return ""; }

  /// Local. Called when the hook is registered, where it may throw c10::Error so that all ranks
  /// refuse the hook, and again when the trained parameters or the buckets have changed.
  virtual void prepare(const Setting& /*setting*/) {}

  /// Returns true if the hook carries parts of gradients from one step into the next, so that the
  /// gradients of all steps must have one scale. Then the engine refuses losses with weights, whose
  /// sum differs from step to step, and join() with JoinOptions::Divide::kByActive. Must always
  /// return the same value.
  virtual bool carries_gradients() const { return false; }

  /// Collective. Called in backward (or in the call that reduces after no_sync()), for one bucket
  /// after the other in the same order on all ranks. Returns the gradients that the engine uses,
  /// already divided, as in PyTorch: [numel] of the buffer's dtype, in memory like the buffer, or
  /// the buffer itself. These gradients should have the same bits on all ranks. The hook may run
  /// collectives on `group`, the engine's, in the same order on all ranks, and must wait for them
  /// before it returns. An exception, or a result of another size or dtype, ends the engine on all
  /// ranks.
  virtual at::Tensor run(const GradBucket& bucket, ProcessGroup& group) = 0;

  /// Local. State to be saved and loaded with the engine's: the same names, shapes and dtypes on
  /// all ranks; rank 0's values are saved.
  virtual std::vector<State> state() { return {}; }
  /// Collective, before a state is saved: makes state() equal on all ranks.
  virtual void before_saving(ProcessGroup& /*group*/) {}
  /// Local. Returns the bytes that the hook keeps from step to step, counted as
  /// MemoryClass::kGradients.
  virtual int64_t bytes() const { return 0; }

 protected:
  CommHook() = default;
};

/// Returns a hook without state that calls `run`, which must do what CommHook::run() says.
std::shared_ptr<CommHook> make_comm_hook(
    std::string name, std::function<at::Tensor(const GradBucket& bucket, ProcessGroup& group)> run);

/// Returns a hook that all-reduces the whole bucket, with the bits that the engine gives without a
/// hook. A base for other hooks.
std::shared_ptr<CommHook> all_reduce_hook();

/// Returns a hook that sends nothing: each rank goes on with its own gradients, so replicas drift
/// apart. For measuring how long training takes without the communication of gradients.
std::shared_ptr<CommHook> noop_hook();

}  // namespace tessera

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

/// The gradients of one bucket, which a CommHook communicates: each is the sum over this rank's
/// backwards since the last reduction (several after Engine::no_sync()), or zeros if the parameter
/// had no gradient. Under Options::loss_scale they are gradients of the scaled loss. Corresponds to
/// c10d's GradBucket.
struct GradBucket {
  /// Index of the bucket in Engine::units(). In the first backward the hook gets the buckets in the
  /// order of their indices; in later ones, in the order that Options::reorder_reductions
  /// determines.
  size_t index = 0;
  /// True for the n-th bucket that the hook gets in this backward, n being the number of buckets.
  /// It is the last one, unless buckets with second gradients of a parameter (re-entrant
  /// checkpointing) follow.
  bool is_last = false;
  /// "bucket 0" for example; can be the tag of collectives; valid until the hook returns.
  std::string_view name;
  /// [numel], of the communication dtype; the hook may write it. Gradients begin on multiples of 64
  /// elements; what lies in the gaps between them is ignored.
  at::Tensor buffer;
  std::vector<at::Tensor> gradients;   ///< views of `buffer` with the parameters' shapes
  std::vector<at::Tensor> parameters;  ///< the parameter of each of `gradients`; read-only
  std::vector<std::string> names;      ///< the parameters' first names
  double divisor = 1.0;  ///< what a sum over ranks is divided by: the number of ranks, or
                         ///< Options::gradient_divide_factor
};

/// Communicates gradients in place of the engine's all-reduce, after Engine::register_comm_hook()
/// has registered it. One object per engine and rank, used by one thread at a time.
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
    std::string name;  ///< unique in the hook; "comm_hook.<name()>.<name>" in a StateDict
    /// On the CPU. Loading a state writes into it, or fills it with zeros if that state lacks this
    /// entry (PartialState).
    at::Tensor tensor;
    /// The name of the parameter that this state belongs to; "" if it belongs to none.
    std::string parameter;
  };

  virtual ~CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;

  /// Returns the hook's name, equal on all ranks.
  virtual std::string name() const = 0;
  /// Returns, as text, the settings that must be equal on all ranks.
  virtual std::string settings() const { return ""; }

  /// Local. Called when the hook is registered, where it may throw c10::Error so that all ranks
  /// refuse the hook, and again when the trained parameters or the buckets have changed.
  virtual void prepare(const Setting& /*setting*/) {}

  /// Returns true if the hook carries parts of gradients from one step into the next, so that the
  /// gradients of all steps must have one scale. Then the engine refuses join() with
  /// JoinOptions::Divide::kByActive, and losses with weights, because the sum of the weights
  /// differs from step to step. Must always return the same value.
  virtual bool carries_gradients() const { return false; }

  /// Collective. Called in backward (or in the call that reduces after no_sync()), for one bucket
  /// after the other in the same order on all ranks. Returns the gradients that the engine uses,
  /// already divided, as in PyTorch: either the buffer itself or [numel] of the buffer's dtype on
  /// the buffer's device. These gradients should have the same bits on all ranks. The hook may run
  /// collectives on `group`, the engine's, in the same order on all ranks, and must wait for them
  /// before it returns. An exception, or a result of another size or dtype, ends the engine on all
  /// ranks.
  virtual at::Tensor run(const GradBucket& bucket, ProcessGroup& group) = 0;

  /// Local. Returns the state that is saved and loaded with the engine's: the same names, shapes
  /// and dtypes on all ranks; rank 0's values are saved.
  virtual std::vector<State> state() { return {}; }
  /// Collective. Called before a state is saved; makes state() equal on all ranks.
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

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

/// Gradients of one bucket that a CommHook communicates: what this rank's backwards since the last
/// reduction gave (several under Engine::no_sync()), zeros where they gave nothing, multiplied by
/// the loss scale under Options::loss_scale. c10d's GradBucket.
struct GradBucket {
  size_t index = 0;       ///< of the bucket in Engine::units(). Buckets come in this order in the
                          ///< first backward; Options::reorder_reductions
  bool is_last = false;   ///< of the model's buckets in this backward. Later ones hold second
                          ///< gradients of a parameter (re-entrant checkpointing)
  std::string_view name;  ///< "bucket 0"; a tag for collectives; valid during the call
  at::Tensor buffer;      ///< [numel], the communication dtype; may be written. Gradients begin on
                          ///< multiples of 64 elements; gaps between them are ignored
  std::vector<at::Tensor> gradients;   ///< views of `buffer` with the parameters' shapes
  std::vector<at::Tensor> parameters;  ///< whose gradients they are; to be read only
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
    std::string name;       ///< unique in the hook; "comm_hook.<name()>.<name>" in a StateDict
    at::Tensor tensor;      ///< on the CPU; loading writes this memory, or zeros it if the state
                            ///< lacks it (PartialState)
    std::string parameter;  ///< name of the parameter that it belongs to; "" for none
  };

  virtual ~CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;

  /// Equal on all ranks.
  virtual std::string name() const = 0;
  /// Returns, as text, the settings that must be equal on all ranks.
  virtual std::string settings() const { return ""; }

  /// Local. Called when the hook is registered, where it may throw c10::Error to be refused on all
  /// ranks, and again when what is trained or the buckets have changed.
  virtual void prepare(const Setting& /*setting*/) {}

  /// Returns true if the hook carries parts of gradients from one step into the next, so that the
  /// gradients of all steps must have one scale. Then the engine refuses losses with weights, whose
  /// sum differs from step to step, and join() that divides by the ranks that have batches.
  /// Constant.
  virtual bool carries_gradients() const { return false; }

  /// Collective. Called in backward (or in what reduces after no_sync()), for one bucket after the
  /// other in the same order on all ranks. Returns the gradients that the engine uses, already
  /// divided, as in PyTorch: [numel] of the buffer's dtype, in memory like the buffer, or the
  /// buffer itself. They should have the same bits on all ranks. The hook may run collectives on
  /// `group`, the engine's, in the same order on all ranks, and must wait for them before it
  /// returns. An exception, or a result of another size or dtype, ends the engine on all ranks.
  virtual at::Tensor run(const GradBucket& bucket, ProcessGroup& group) = 0;

  /// Local. State to be saved and loaded with the engine's: the same names, shapes and dtypes on
  /// all ranks; rank 0's values are saved.
  virtual std::vector<State> state() { return {}; }
  /// Collective, before a state is saved: makes state() equal on all ranks.
  virtual void before_saving(ProcessGroup& /*group*/) {}
  /// Local. Bytes that it keeps from step to step, counted as MemoryClass::kGradients.
  virtual int64_t bytes() const { return 0; }

 protected:
  CommHook() = default;
};

/// A hook without state that calls `run`; CommHook::run() says what that must do.
std::shared_ptr<CommHook> make_comm_hook(
    std::string name, std::function<at::Tensor(const GradBucket& bucket, ProcessGroup& group)> run);

/// All-reduces the whole bucket, as the engine does by itself, to the bit. A base for other hooks.
std::shared_ptr<CommHook> all_reduce_hook();

/// Sends nothing: each rank goes on with its own gradients, so replicas drift apart. For measuring
/// how long training takes without the communication of gradients.
std::shared_ptr<CommHook> noop_hook();

}  // namespace tessera

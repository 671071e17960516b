#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace tessera {

namespace internal {
struct OpenJoin;
}  // namespace internal

/// What happens in a loop over Engine::join() when some ranks have no batches left. Equal on all
/// ranks, except `on_step`.
struct JoinOptions {
  /// The number by which gradients are divided in steps in which some ranks have no batch, if
  /// losses have no weights. Losses with weights are always divided by the sum of the weights.
  enum class Divide : uint8_t {
    kByActive,  ///< the number of ranks that had a batch: each batch of a step counts the same
    kByWorld,   ///< the number of all ranks, so that the last updates are smaller
  } divide = Divide::kByActive;

  /// If true, all ranks throw c10::Error as soon as one rank has no batches left while another has.
  bool throws_when_one_ends = false;

  /// Called on a rank that has no batches left, each time that rank has taken part in a step() of
  /// the other ranks. The function does what the other ranks' loops do after step(), such as
  /// stepping learning rate schedulers. It may be empty, because a rank without batches takes its
  /// hyper-parameters from the lowest rank that has batches. It may make only the engine calls that
  /// the other ranks make after their step().
  std::function<void()> on_step = {};
};

/// This rank's part in a loop over Engine::join(). That function makes this object. Not
/// thread-safe.
class JoinScope {
 public:
  explicit JoinScope(std::shared_ptr<internal::OpenJoin> open) : open_(std::move(open)) {}
  JoinScope(JoinScope&& other) noexcept = default;
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;
  JoinScope& operator=(JoinScope&&) = delete;
  /// Local. If follow() has not returned, this rank has left the loop early: the engine's next
  /// collective call throws c10::Error on every rank, unless all ranks have left the loop.
  ~JoinScope();

  /// Called when this rank has no batches left. Takes part in the backwards and steps of the other
  /// ranks, without gradients of its own, until no rank has batches. Throws what these calls throw.
  void follow();

 private:
  std::shared_ptr<internal::OpenJoin> open_;
};

/// The batches of a loader, for ranks that have different numbers of batches. For one range-based
/// for loop that calls backward and step(). A rank that has no batches left follows the others'
/// calls, with zeros for gradients, until no rank has batches. So ranks leave the loop together,
/// with the hyper-parameters of the ranks that had batches last. The loader may be any range.
///
/// Inside the loop, each backward (under no_sync() too), accumulate(), step() and zero_grad()
/// begins with an all-gather of one word. A step that some ranks follow also gathers the
/// hyper-parameters, which the ranks without batches take from the lowest rank that has batches.
///
/// Engine::join() throws c10::Error on every rank inside the loop of another join(), if the ranks'
/// JoinOptions differ, and under asynchronous steps, cuda_graphs and Reproducible::kAnyWorldSize.
/// It also throws if ranks gather split parameters together, as on GPUs. It refuses a model with a
/// SyncBatchNorm unless throws_when_one_ends is true, and Divide::kByActive if
/// CommHook::carries_gradients() is true. Inside the loop, all ranks throw c10::Error that names
/// the ranks if some leave the loop before the others, if ranks that have batches make different
/// calls, and if they make another collective call of this engine than the four above while a rank
/// has no batches left. set_trainable() and add_group() always throw inside the loop.
template <typename Loader>
class JoinedBatches {
 public:
  /// Called by Engine::join(). `loader` must outlive it.
  JoinedBatches(Loader& loader, JoinScope scope) : loader_(loader), scope_(std::move(scope)) {}

  struct End {};
  class Iterator {
   public:
    Iterator(Loader& loader, JoinScope& scope)
        : batch_(loader.begin()), end_(loader.end()), scope_(&scope) {
      follow_at_end();
    }
    decltype(auto) operator*() { return *batch_; }
    Iterator& operator++() {
      ++batch_;
      follow_at_end();
      return *this;
    }
    bool operator!=(End) const { return !is_over_; }

   private:
    void follow_at_end() {
      if (batch_ != end_) return;
      scope_->follow();
      is_over_ = true;
    }

    decltype(std::declval<Loader&>().begin()) batch_;
    decltype(std::declval<Loader&>().end()) end_;
    JoinScope* scope_;
    bool is_over_ = false;
  };

  Iterator begin() { return Iterator(loader_, scope_); }
  End end() { return {}; }

 private:
  Loader& loader_;
  JoinScope scope_;
};

}  // namespace tessera

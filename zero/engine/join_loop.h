#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "tessera/core/step/host_all_gather.h"
#include "tessera/join.h"
#include "tessera/zero/buffers/synced_buffers.h"
#include "tessera/zero/engine/engine_context.h"
#include "tessera/zero/engine/join_protocol.h"
#include "tessera/zero/engine/open_join.h"
#include "tessera/zero/engine/trained_parameters.h"
#include "tessera/zero/step/step_weight.h"

namespace tessera::internal {

/// Knows whether the engine is in a loop over Engine::join(), and makes the announcements before
/// each collective call in the loop. Note [Join] in join_loop.cc. Used by one thread.
class JoinLoop {
 public:
  /// References must outlive it.
  JoinLoop(EngineContext& context, TrainedParameters& trained, StepWeight& weight)
      : context_(context), trained_(trained), weight_(weight) {}
  ~JoinLoop() { end(); }
  JoinLoop(const JoinLoop&) = delete;
  JoinLoop& operator=(const JoinLoop&) = delete;

  /// Does Engine::join(); the returned JoinScope::follow() calls `follow`. Collective, blocking.
  /// Throws c10::Error on every rank if options differ or this engine does not support join().
  JoinScope begin(JoinOptions options, std::function<void()> follow);
  void end();
  bool is_open() const { return open_ != nullptr; }

  /// Announces that this rank calls `name` next, and returns the call that the ranks with batches
  /// make. Inside a loop it is collective and blocking, and throws as JoinProtocol::exchange()
  /// does. Outside a loop, or while follow() repeats on this rank a call that the ranks with
  /// batches announced, it returns `mine` without communication. Ends the loop if all ranks have
  /// left it.
  JoinProtocol::Call announce(JoinProtocol::Call mine, const char* name, bool is_weighted = false);

  /// Repeats the calls of the ranks with batches by calling `make`, until no rank has batches left,
  /// which ends the loop. `make` never gets kFollow or kOther. Runs the program's
  /// JoinOptions::on_step after each step. Collective.
  void follow(const std::function<void(JoinProtocol::Call)>& make);
  bool is_following() const { return is_following_; }

  /// Gives the ranks without batches the hyper-parameters of rank JoinProtocol::lowest_active().
  /// Collective and blocking if any rank has no batches left; else does nothing.
  void take_hyper_parameters();

  /// Returns true if the losses of the ranks that this one follows have weights.
  bool is_weighted() const { return protocol_->is_weighted(); }
  /// Returns the ranks with batches; all ranks outside a loop.
  SyncedBuffers::Ranks ranks_with_batches() const;
  /// Returns the factor by which gradients are multiplied under Options::optimizer_in_backward. In
  /// a loop under JoinOptions::Divide::kByActive it turns the mean over all ranks into the mean
  /// over the ranks with batches; else it is 1.
  double early_factor() const;

 private:
  std::string problem_of(const JoinOptions& options) const;
  int64_t bytes() const { return protocol_->bytes() + hyper_parameters_->bytes(); }

  EngineContext& context_;
  TrainedParameters& trained_;
  StepWeight& weight_;
  std::shared_ptr<OpenJoin> open_;        // null outside a loop
  std::optional<JoinProtocol> protocol_;  // set while open_ is set, like hyper_parameters_
  std::optional<HostAllGather> hyper_parameters_;
  bool is_following_ = false;
};

}  // namespace tessera::internal

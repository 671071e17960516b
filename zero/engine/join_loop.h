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

/// The loop over Engine::join() that an engine is in, if any: what ranks tell each other before
/// each collective call. Note [Join] in join_loop.cc. Used by one thread.
class JoinLoop {
 public:
  /// References outlive it.
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

  /// Announces that this rank calls `name` next, and returns the call that comes. Inside a loop it
  /// is collective and blocking and throws as JoinProtocol::exchange(); outside, and while this
  /// rank follows others, it does nothing. Ends the loop if all ranks have left it.
  JoinProtocol::Call announce(JoinProtocol::Call mine, const char* name, bool is_weighted = false);

  /// Follows the calls of the other ranks until none of them has batches left; then the loop is
  /// over. `make` makes one of the calls; it never gets kFollow or kOther. Runs the program's
  /// JoinOptions::on_step after each step. Collective.
  void follow(const std::function<void(JoinProtocol::Call)>& make);
  bool is_following() const { return is_following_; }

  /// If some ranks follow others, gives those ranks the hyper-parameters of the lowest rank with
  /// batches; then it is collective and blocking. Otherwise does nothing.
  void take_hyper_parameters();

  /// Returns true if the losses of the ranks that this one follows have weights.
  bool is_weighted() const { return protocol_->is_weighted(); }
  /// Returns the ranks with batches; all ranks outside a loop.
  SyncedBuffers::Ranks ranks_with_batches() const;
  /// Returns the factor for gradients where backward updates; with it the mean over all ranks is
  /// the mean over the ranks that have batches.
  double early_factor() const;

 private:
  std::string problem_of(const JoinOptions& options) const;
  int64_t bytes() const { return protocol_->bytes() + hyper_parameters_->bytes(); }

  EngineContext& context_;
  TrainedParameters& trained_;
  StepWeight& weight_;
  std::shared_ptr<OpenJoin> open_;        // null outside a loop
  std::optional<JoinProtocol> protocol_;  // set while open_ is, as is the next
  std::optional<HostAllGather> hyper_parameters_;
  bool is_following_ = false;
};

}  // namespace tessera::internal

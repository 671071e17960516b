#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "tessera/core/step/host_all_gather.h"
#include "tessera/join.h"
#include "tessera/zero/buffers/synced_buffers.h"
#include "tessera/zero/engine/announcements.h"
#include "tessera/zero/engine/engine_context.h"
#include "tessera/zero/engine/open_join.h"
#include "tessera/zero/engine/trained_parameters.h"
#include "tessera/zero/step/step_weight.h"

namespace tessera::internal {

/// The loop over Engine::join() that an engine is in, if it is in one: what ranks tell each other
/// before each collective call. Note [Join] in join_loop.cc. Used by one thread.
class JoinLoop {
 public:
  /// References outlive it.
  JoinLoop(EngineContext& context, TrainedParameters& trained, StepWeight& weight)
      : context_(context), trained_(trained), weight_(weight) {}
  ~JoinLoop() { end(); }
  JoinLoop(const JoinLoop&) = delete;
  JoinLoop& operator=(const JoinLoop&) = delete;

  /// Engine::join(), whose JoinScope::follow() calls `follow`. Collective, blocking. Throws
  /// c10::Error on every rank where options differ or this engine cannot be followed.
  JoinScope begin(JoinOptions options, std::function<void()> follow);
  void end();
  bool is_open() const { return open_ != nullptr; }

  /// Says that this rank calls `name` next and learns what the others do. Collective and blocking
  /// inside a loop, where it throws as Announcements::exchange(); nothing outside, and nothing
  /// while this rank follows others. The loop is over if all ranks have left it. Returns the call
  /// that comes.
  Announcements::Call announce(Announcements::Call mine, const char* name,
                               bool is_weighted = false);

  /// The calls of the other ranks, until none of them has batches left, by which the loop is over.
  /// `make` makes one of them; kFollow and kOther are never given to it. After a step the program's
  /// JoinOptions::on_step runs. Collective.
  void follow(const std::function<void(Announcements::Call)>& make);
  bool is_following() const { return is_following_; }

  /// Where some ranks follow others, those take the hyper-parameters in force on the lowest of
  /// these. Collective and blocking there; nothing elsewhere.
  void take_hyper_parameters();

  /// Whether the losses of the ranks that this one follows have weights.
  bool is_weighted() const { return announcements_->is_weighted(); }
  /// Those with batches; all ranks outside a loop.
  SyncedBuffers::Ranks ranks_with_batches() const;
  /// What gradients are multiplied with where backward updates, so that the mean over all ranks is
  /// that over the ranks that have batches.
  double early_factor() const;

 private:
  std::string problem_of(const JoinOptions& options) const;
  int64_t bytes() const { return announcements_->bytes() + hyper_parameters_->bytes(); }

  EngineContext& context_;
  TrainedParameters& trained_;
  StepWeight& weight_;
  std::shared_ptr<OpenJoin> open_;              // null outside a loop
  std::optional<Announcements> announcements_;  // as this and the next
  std::optional<HostAllGather> hyper_parameters_;
  bool is_following_ = false;
};

}  // namespace tessera::internal

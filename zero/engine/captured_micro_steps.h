#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <c10/core/Stream.h>

#include "tessera/core/device/graph.h"
#include "tessera/core/reduce/reducer.h"
#include "tessera/core/sched/stream_join.h"

namespace tessera::internal {

/// The micro-steps of a step as CUDA graphs, one for each place in the step: the first micro-step
/// writes gradients, later ones add to them. Used by one thread.
class CapturedMicroSteps {
 public:
  /// How often a micro-step runs eagerly before it is captured. In these runs libraries make their
  /// handles, and autograd makes its nodes.
  static constexpr int kWarmUps = 3;

  explicit CapturedMicroSteps(at::Device device);

  /// Returns the stream of the micro-steps and of the nodes that accumulate gradients.
  c10::Stream stream() const { return anchor_->stream(); }

  /// Queues micro-step number `place` of a step on the current stream. The first kWarmUps times it
  /// calls `body` eagerly; the next time it calls `body` to capture it, and replays the graph;
  /// after that it only replays the graph. `engine` orders the streams that use the engine's
  /// memory. After a replay `reducer` has the same records of the micro-step as after a call of
  /// `body`. Returns true if `body` was called.
  bool run(size_t place, const std::function<void()>& body, Reducer& reducer, StreamJoin& engine);

 private:
  struct MicroStep {
    int runs = 0;
    std::unique_ptr<Graph> graph;
    Reducer::Snapshot after;
  };

  void run_as_it_is(const std::function<void()>& body, StreamJoin& engine);
  void capture(MicroStep& step, const std::function<void()>& body, StreamJoin& engine);

  const std::unique_ptr<Graph> anchor_;  // never captures; other graphs share its stream and memory
  StreamJoin user_;  // orders the user's stream and stream() around eager micro-steps
  std::vector<MicroStep> steps_;
};

}  // namespace tessera::internal

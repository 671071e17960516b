#include "tessera/zero/engine/captured_micro_steps.h"

#include <utility>

#include <ATen/Context.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include "tessera/core/process/error_text.h"

namespace tessera::internal {

CapturedMicroSteps::CapturedMicroSteps(at::Device device)
    : anchor_(make_graph(device)), user_(device) {
  // Turns off LibTorch's warning that a node which accumulates gradients belongs to another stream
  // than the one on which the gradient was computed. Here the nodes belong to stream(), eager steps
  // run on another stream, and autograd orders the two.
  at::globalContext().setWarnOnAccumulateGradStreamMismatch(false);
}

bool CapturedMicroSteps::run(size_t place, const std::function<void()>& body, Reducer& reducer,
                             StreamJoin& engine) {
  if (steps_.size() <= place) steps_.resize(place + 1);
  MicroStep& step = steps_[place];
  if (step.graph != nullptr) {
    engine.pass();
    step.graph->replay();
    reducer.repeat_micro_step(step.after);
    return false;
  }
  if (step.runs < kWarmUps) {
    run_as_it_is(body, engine);
    ++step.runs;
    return true;
  }
  capture(step, body, engine);
  step.after = reducer.snapshot();
  engine.pass();
  step.graph->replay();  // the capture recorded the work and did not run it
  return true;
}

void CapturedMicroSteps::run_as_it_is(const std::function<void()>& body, StreamJoin& engine) {
  user_.pass();
  {
    const c10::StreamGuard guard(stream());
    user_.pass();
    engine.pass();
    body();
  }
  user_.pass();
}

void CapturedMicroSteps::capture(MicroStep& step, const std::function<void()>& body,
                                 StreamJoin& engine) {
  {
    // The stream waits here, before the capture, because during a capture it may not wait for work
    // outside the capture.
    const c10::StreamGuard guard(stream());
    engine.pass();
  }
  std::unique_ptr<Graph> graph = make_graph_beside(*anchor_);
  try {
    graph->begin();
    body();
    graph->end();
  } catch (const std::exception& error) {
    TORCH_CHECK(false,
                "[graph] micro_step: got a body that cannot be captured: ", error_text(error),
                ". Leave what waits for the device out of it, or run without "
                "Options::cuda_graphs");
  }
  step.graph = std::move(graph);
}

}  // namespace tessera::internal

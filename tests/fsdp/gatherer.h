#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/core/sched/trace.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/recording_group.h"
#include "tessera/tests/support/row.h"
#include "tessera/tests/support/training.h"
#include "tessera/zero/parallelize.h"

namespace tessera::testing {

/// zero3 with the units of default wrapping: of the model Blocks its seven blocks and the root.
inline Row blocks_row(std::optional<int> reshard_after_forward = {}) {
  Row row = apart(row_of(Strategy::kZero3));
  row.wrap = Row::Wrap::kBlocks;
  row.reshard_after_forward = reshard_after_forward;
  return row;
}

/// One rank that trains a model and records what it reads.
struct Gatherer {
  Gatherer(const std::shared_ptr<ProcessGroup>& group, const Row& row,
           const std::string& model = "Blocks")
      : world(std::make_shared<RecordingGroup>(group, recording)),
        of(subject(model)),
        net(prepare(of.make(), at::kFloat, 1)) {
    Options options = options_of(row);
    options.trace = true;
    engine = parallelize(net, make_plan(*net), options, world);
    recording->clear();
  }

  at::Tensor loss(int step) const {
    const Moment moment{.step = step, .rank = world->rank()};
    return loss_of(*net, batch_of(of, at::kFloat, {.name = ""}, moment, 0), moment, {.name = ""});
  }
  void train(int step) const {
    loss(step).backward();
    engine->step();
  }
  void evaluate(int step) const {
    const at::NoGradGuard no_grad;
    loss(step);
  }
  /// Gathers since the last call.
  int64_t gathers() {
    return engine->gather_counts().gathers - std::exchange(seen_, engine->gather_counts().gathers);
  }
  /// Names of the units gathered since the last call, in order.
  std::vector<std::string> gathered() {
    std::vector<std::string> names;
    const auto spans = trace_of(*engine)->spans();
    for (; seen_spans_ < spans.size(); ++seen_spans_) {
      if (spans[seen_spans_].track == TraceTrack::kGather) {
        names.emplace_back(spans[seen_spans_].name);
      }
    }
    return names;
  }

  std::shared_ptr<Recording> recording = std::make_shared<Recording>();
  std::shared_ptr<ProcessGroup> world;
  const Subject& of;
  std::shared_ptr<Net> net;
  std::unique_ptr<Engine> engine;

 private:
  int64_t seen_ = 0;
  size_t seen_spans_ = 0;
};

/// Runs `body` on rank threads with a model split as `row` says.
inline void on_gatherers(int size, const Row& row, const std::function<void(Gatherer&)>& body,
                         const std::string& model = "Blocks") {
  RankThreadOptions options;
  // Units are fetched ahead where communication runs beside computation.
  if (row.prefetch.value_or(false)) options.lane = ProcessGroupOptions::Lane::kThread;
  run_ranks(
      size,
      [&](std::shared_ptr<ProcessGroup> group) {
        Gatherer rank(group, row, model);
        body(rank);
      },
      options);
}

}  // namespace tessera::testing

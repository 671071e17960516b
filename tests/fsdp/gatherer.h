#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/engine_rank.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/recording_group.h"
#include "tessera/tests/support/training.h"
#include "tessera/trace.h"

namespace tessera::internal::testing {

/// zero3 with the units of default wrapping: the model Blocks has seven blocks and the root.
inline Configuration blocks_configuration(std::optional<int> reshard_after_forward = {}) {
  Configuration configuration = apart(configuration_of(Strategy::kZero3));
  configuration.wrap = Configuration::Wrap::kBlocks;
  configuration.reshard_after_forward = reshard_after_forward;
  return configuration;
}

/// A rank that trains a model and records its reads.
struct Gatherer : EngineRank<Net> {
  Gatherer(std::shared_ptr<ProcessGroup> group, const Configuration& configuration,
           const std::string& model = "Blocks")
      : Gatherer(std::make_shared<RecordingGroup>(std::move(group), std::make_shared<Recording>()),
                 configuration, subject(model), prepare(subject(model).make(), at::kFloat, 1)) {}

  at::Tensor loss(int step) const override {
    const Moment moment{.step = step, .rank = world->rank()};
    return loss_of(*net, batch_of(of, at::kFloat, {.name = ""}, moment, 0), moment, {.name = ""});
  }
  /// The loss of batch `step`, without a graph.
  double evaluate(int step) const {
    const at::NoGradGuard no_grad;
    return loss(step).item<double>();
  }
  /// Number of gathers since the last call.
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

  std::shared_ptr<Recording> recording;
  const Subject& of;

 private:
  Gatherer(const std::shared_ptr<RecordingGroup>& group, const Configuration& configuration,
           const Subject& subject, const std::shared_ptr<Net>& model)
      : EngineRank(group, model, make_plan(*model), traced_options_of(configuration)),
        recording(group->recording()),
        of(subject) {
    recording->clear();
  }
  static Options traced_options_of(const Configuration& configuration) {
    Options options = options_of(configuration);
    options.trace = true;
    return options;
  }

  int64_t seen_ = 0;
  size_t seen_spans_ = 0;
};

/// Runs `body` on rank threads with a model split as `configuration` says.
inline void on_gatherers(int size, const Configuration& configuration,
                         const std::function<void(Gatherer&)>& body,
                         const std::string& model = "Blocks") {
  RankThreadOptions options;
  // Units are prefetched if communication runs concurrently with computation.
  if (configuration.prefetch.value_or(false)) options.lane = ProcessGroupOptions::Lane::kThread;
  run_ranks(
      size,
      [&](std::shared_ptr<ProcessGroup> group) {
        Gatherer rank(std::move(group), configuration, model);
        body(rank);
      },
      options);
}

}  // namespace tessera::internal::testing

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tessera/comm_hook.h"
#include "tessera/process_group.h"
#include "tessera/tests/support/engine_rank.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {

/// A rank that trains `model` in fp32, with several buckets, and communicates gradients by `hook`,
/// or by the engine if it is null.
struct HookedRank : EngineRank<Net> {
  HookedRank(std::shared_ptr<ProcessGroup> group, const std::shared_ptr<CommHook>& hook,
             const std::string& model = "OddMlp", const Options& options = small_ddp(),
             at::ScalarType computes_in = at::kFloat)
      : EngineRank(std::move(group), prepare(subject(model).make(), computes_in, 3),
                   torch::optim::AdamWOptions(0.02).eps(1e-6), options),
        trained(subject(model)),
        dtype(computes_in) {
    if (hook != nullptr) engine->register_comm_hook(hook);
  }
  static Options small_ddp() { return small_options_of(configuration_of(Strategy::kDdp)); }

  at::Tensor loss(int step) const override {
    const Schedule schedule{.name = ""};
    const Moment moment{.step = step, .rank = world->rank()};
    return engine->scale(
        loss_of(*net, batch_of(trained, dtype, schedule, moment, 0), moment, schedule));
  }

  Subject trained;
  at::ScalarType dtype;
};

/// For train(): returns a backward that registers `make`'s hook before its first call. Every rank
/// of a run has its own thread.
inline auto hooked(std::function<std::shared_ptr<CommHook>()> make) {
  return
      [make = std::move(make)](Engine& engine, const torch::nn::Module&, const at::Tensor& loss) {
        thread_local bool is_registered = false;
        if (!is_registered) engine.register_comm_hook(make());
        is_registered = true;
        loss.backward();
      };
}

}  // namespace tessera::internal::testing

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/state_stream.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/zero/engine/thawed_rank.h"

// User functions that run inside a call of the engine: schedules, predicates, sinks. Calls of the
// engine that they make are refused by name, without harm.
namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;
using torch::optim::AdamWOptions;

bool is_layer0(std::string_view name) { return name.starts_with("layer0."); }

/// Calls `inner` once, from a user function that `outer` runs on every rank.
struct Nested {
  const char* outer;
  std::function<void(Engine& engine, const std::function<void()>& inner)> run;
};

struct CallingSink : StateSink {
  explicit CallingSink(const std::function<void()>& inner) : inner(inner) {}
  void begin(const std::vector<StateOutline>&) override { inner(); }
  void write(size_t, int64_t, const at::Tensor&) override {}
  const std::function<void()>& inner;
};

std::vector<Nested> nested_calls() {
  return {
      {"step",
       [](Engine& engine, const std::function<void()>& inner) {
         engine.set_schedule([&](int64_t) {
           inner();
           return 0.1;
         });
         message_of([&] { engine.step(); });  // without a backward, if there is a schedule
         engine.set_schedule({});
       }},
      {"set_trainable",
       [](Engine& engine, const std::function<void()>& inner) {
         engine.set_trainable([&](std::string_view) {
           inner();
           return true;
         });
       }},
      {"add_group",
       [](Engine& engine, const std::function<void()>& inner) {
         const auto selects = [&](std::string_view name) {
           inner();
           return is_layer0(name);
         };
         engine.add_group({"first", selects, AdamWOptions(0.02).eps(1e-6)});
       }},
      {"load_state_dict",
       [](Engine& engine, const std::function<void()>& inner) {
         const auto may_lack = [&](std::string_view) {
           inner();
           return false;
         };
         engine.load_state_dict(engine.state_dict(StateScope::kSharded), {.may_lack = may_lack});
       }},
      {"write_state",
       [](Engine& engine, const std::function<void()>& inner) {
         CallingSink sink(inner);
         engine.write_state(sink);
       }},
  };
}

class NestedCalls : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Outer, NestedCalls, ::testing::Range(size_t{0}, nested_calls().size()),
                         [](const auto& info) { return nested_calls()[info.param].outer; });

TEST_P(NestedCalls, AreRefusedByNameAndTrainingGoesOn) {
  const Nested nested = nested_calls()[GetParam()];
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
    run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
      const ThawedRank rank(group, "OddMlp", configuration_of(strategy), &is_layer0);
      rank.train(0, 1);
      int calls = 0;
      const std::vector<std::pair<std::string, std::function<void()>>> inner = {
          {"set_trainable", [&] { rank.engine->set_trainable(all_train); }},
          {"add_group",
           [&] {
             rank.engine->add_group({"x", all_train, AdamWOptions(0.1)});
           }},
          {"set_schedule", [&] { rank.engine->set_schedule([](int64_t) { return 0.3; }); }},
          {"zero_grad", [&] { rank.engine->zero_grad(); }},
          {"step", [&] { rank.engine->step(); }},
          {"state_dict", [&] { rank.state(); }},
          {"load_state_dict", [&] { rank.engine->load_state_dict({}); }},
      };
      nested.run(*rank.engine, [&] {
        for (const auto& [name, call] : inner) {
          EXPECT_THAT(message_of(call), HasSubstr("[engine] " + name + ": called inside " +
                                                  nested.outer + ", by a function that was given"));
          ++calls;
        }
      });
      EXPECT_GE(calls, static_cast<int>(inner.size()));
      rank.train(1, 2);
      EXPECT_EQ(rank.engine->steps(), 2);
    });
  }
}

}  // namespace
}  // namespace tessera::internal::testing

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/comm_hook.h"
#include "tessera/tests/ddp/hooked_rank.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"

// Hooks that are refused, on all ranks, and hooks that fail, which ends the engine on all ranks.

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Registers `make(rank)` on all ranks; returns their errors. The engine must still work.
std::vector<std::string> refusals_of(
    const std::function<std::shared_ptr<CommHook>(int rank)>& make,
    const Configuration& configuration = configuration_of(Strategy::kDdp), int size = 3,
    const std::function<void(HookedRank&)>& before = {}) {
  std::vector<std::string> messages(static_cast<size_t>(size));
  run_ranks(size, [&](const std::shared_ptr<ProcessGroup>& world) {
    HookedRank rank(world, nullptr, "OddMlp", small_options_of(configuration));
    if (before) before(rank);
    messages[static_cast<size_t>(world->rank())] =
        message_of([&] { rank.engine->register_comm_hook(make(world->rank())); });
    rank.engine->zero_grad();
    EXPECT_TRUE(rank.train(1).committed);
    parameter_hash(*rank.engine);
  });
  return messages;
}

void expect_all(const std::vector<std::string>& messages,
                const ::testing::Matcher<std::string>& matcher) {
  EXPECT_THAT(messages, ::testing::Each(matcher));
}

TEST(CommHookRefusals, NullOnOneRank) {
  expect_all(refusals_of([](int rank) { return rank == 1 ? nullptr : noop_hook(); }),
             AllOf(HasSubstr("[comm hook] rank 1"), HasSubstr("got null")));
}

TEST(CommHookRefusals, AnEmptyFunction) {
  expect_all(refusals_of([](int) { return make_comm_hook("mine", {}); }),
             HasSubstr("'mine': got an empty function, expected one that communicates a bucket"));
}

TEST(CommHookRefusals, OtherHooksOnOtherRanks) {
  expect_all(refusals_of([](int rank) { return rank == 2 ? all_reduce_hook() : noop_hook(); }),
             AllOf(HasSubstr("[register_comm_hook] rank 2 differs from rank 0"),
                   HasSubstr("'all_reduce' vs 'noop'")));
}

TEST(CommHookRefusals, ASecondOne) {
  const auto before = [](HookedRank& rank) { rank.engine->register_comm_hook(all_reduce_hook()); };
  expect_all(
      refusals_of([](int) { return noop_hook(); }, configuration_of(Strategy::kDdp), 3, before),
      HasSubstr("'all_reduce' is registered; register_comm_hook can only be called once"));
}

TEST(CommHookRefusals, AfterABackward) {
  const auto train = [](HookedRank& rank) { rank.train(0); };
  expect_all(
      refusals_of([](int) { return noop_hook(); }, configuration_of(Strategy::kZero1), 3, train),
      HasSubstr("'noop' after a backward, expected it before the first"));
  const auto discard = [](HookedRank& rank) {
    rank.backward(0);
    rank.engine->zero_grad();
  };
  expect_all(
      refusals_of([](int) { return noop_hook(); }, configuration_of(Strategy::kDdp), 3, discard),
      HasSubstr("'noop' after a backward"));
}

TEST(CommHookRefusals, GradientsThatAreSplit) {
  for (const Strategy strategy : {Strategy::kZero2, Strategy::kZero3}) {
    expect_all(refusals_of([](int) { return noop_hook(); }, configuration_of(strategy)),
               AllOf(HasSubstr("'noop': got strategy " + std::string(to_string(strategy))),
                     HasSubstr("splits gradients over 3 ranks"), HasSubstr("use ddp, zero1")));
  }
  expect_all(refusals_of([](int) { return noop_hook(); }, hybrid(1, 2, 4), 4),
             HasSubstr("got strategy hybrid, which splits gradients over 2 ranks"));
}

/// A hook that refuses to be prepared on rank 1.
class UnwillingHook final : public CommHook {
 public:
  explicit UnwillingHook(bool refuses) : refuses_(refuses) {}
  std::string name() const override { return "unwilling"; }
  void prepare(const Setting&) override {
    if (refuses_) throw std::runtime_error("not this model");
  }
  at::Tensor run(const GradBucket& bucket, ProcessGroup&) override { return bucket.buffer; }

 private:
  const bool refuses_;
};

TEST(CommHookRefusals, WhatTheHookItselfRefusesOnOneRank) {
  expect_all(refusals_of([](int rank) { return std::make_shared<UnwillingHook>(rank == 1); }),
             HasSubstr("[comm hook] rank 1: register_comm_hook: 'unwilling': not this model"));
}

TEST(CommHookRefusals, ARankThatRegistersNoneIsNamedByAllAndNothingHangs) {
  const std::vector<std::string> messages =
      run_ranks_expecting_errors(3, [](const std::shared_ptr<ProcessGroup>& world) {
        HookedRank rank(world, nullptr);
        if (world->rank() != 1) rank.engine->register_comm_hook(all_reduce_hook());
        rank.train(0);
      });
  expect_all(messages, HasSubstr("all_reduce"));
}

/// Returns the errors of three ranks if `run` is the hook on rank 1 and a correct one runs
/// elsewhere.
std::vector<std::string> endings_of(const std::function<at::Tensor(const GradBucket&)>& run) {
  return run_ranks_expecting_errors(3, [&](const std::shared_ptr<ProcessGroup>& world) {
    const auto hook = make_comm_hook("fragile", [&](const GradBucket& bucket, ProcessGroup& group) {
      if (group.rank() == 1 && bucket.index == 1) return run(bucket);
      group.all_reduce(bucket.buffer, ReduceOp::kAvg, bucket.name, bucket.divisor)->wait();
      return bucket.buffer;
    });
    HookedRank rank(world, hook);
    const std::string first = message_of([&] { rank.backward(0); });
    const std::string later = message_of([&] { rank.engine->step(); });
    EXPECT_NE(first, kNothingThrown);
    EXPECT_THAT(later, HasSubstr("fragile")) << "the engine has ended";
    throw std::runtime_error(first);
  });
}

TEST(BrokenCommHooks, EndTheEngineOnAllRanksWithTheirText) {
  const std::string text = "'fragile' for bucket 1: threw: the codec broke";
  expect_all(endings_of([](const GradBucket&) -> at::Tensor {
               throw std::runtime_error("the codec broke");
             }),
             HasSubstr(text));
  expect_all(endings_of([](const GradBucket&) -> at::Tensor {
               TORCH_CHECK(false, "the codec broke");
               return {};
             }),
             HasSubstr(text));
  expect_all(endings_of([](const GradBucket&) -> at::Tensor { throw 1; }),
             HasSubstr("'fragile' for bucket 1: threw: "));
}

TEST(BrokenCommHooks, ThatReturnSomethingElseEndTheEngineOnAllRanks) {
  const auto expect = [](const std::function<at::Tensor(const GradBucket&)>& run,
                         const std::string& got) {
    expect_all(endings_of(run), AllOf(HasSubstr("'fragile' for bucket 1: returned " + got),
                                      HasSubstr("as the bucket's buffer has")));
  };
  expect([](const GradBucket& bucket) { return bucket.buffer.narrow(0, 0, 3); },
         "3 elements of Float");
  expect([](const GradBucket& bucket) { return bucket.buffer.to(at::kDouble); }, "");
  expect([](const GradBucket&) { return at::Tensor(); }, "an undefined tensor");
}

TEST(BrokenCommHooks, ThatCallTheEngineOrABackwardOfItsEndTheEngineOnAllRanks) {
  for (const bool is_backward : {false, true}) {
    const std::vector<std::string> messages =
        run_ranks_expecting_errors(3, [&](const std::shared_ptr<ProcessGroup>& world) {
          HookedRank* self = nullptr;
          const auto hook = make_comm_hook("mine", [&](const GradBucket& bucket, ProcessGroup&) {
            const at::AutoGradMode with_grad(true);
            is_backward ? self->loss(1).backward() : self->engine->zero_grad();
            return bucket.buffer;
          });
          HookedRank rank(world, hook);
          self = &rank;
          throw std::runtime_error(message_of([&] { rank.backward(0); }));
        });
    expect_all(messages,
               HasSubstr(is_backward ? "backward runs inside the communication hook"
                                     : "zero_grad: called inside the communication hook"));
  }
}

/// A hook whose ranks call different collectives.
TEST(BrokenCommHooks, ThatSendSomethingElseAreNamedByAllRanks) {
  const std::vector<std::string> messages =
      run_ranks_expecting_errors(3, [](const std::shared_ptr<ProcessGroup>& world) {
        const auto hook = make_comm_hook("odd", [](const GradBucket& bucket, ProcessGroup& group) {
          if (group.rank() == 2) {
            group.all_reduce(bucket.buffer.narrow(0, 0, 1), ReduceOp::kSum, "odd")->wait();
          } else {
            group.all_reduce(bucket.buffer, ReduceOp::kSum, "odd")->wait();
          }
          return bucket.buffer;
        });
        HookedRank rank(world, hook);
        rank.train(0);
      });
  expect_all(messages, HasSubstr("all_reduce SUM float32[1] 'odd'"));
}

TEST(BrokenCommHooks, ThatReturnInfinitiesAreStoppedByTheStepOnAllRanks) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    HookedRank rank(world, make_comm_hook("wild", [](const GradBucket& bucket, ProcessGroup&) {
                      return bucket.buffer.fill_(INFINITY);
                    }));
    rank.backward(0);
    EXPECT_THAT(message_of([&] { rank.engine->step(); }), HasSubstr("non-finite gradient"));
  });
}

}  // namespace
}  // namespace tessera::internal::testing

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include <c10/core/CPUAllocator.h>
#include <torch/torch.h>

#include "tessera/ddp/bucket_rule.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"
#include "tessera/zero/parallelize.h"

namespace tessera::testing {
namespace {

constexpr int64_t kBucketBytes = 2048;

/// Counts the memory that tensors ask LibTorch for, thread by thread.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}
  c10::DataPtr allocate(size_t bytes) override {
    ++count;
    return inner_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    inner_->copy_data(to, from, bytes);
  }

  static thread_local int64_t count;

 private:
  c10::Allocator* inner_;
};
thread_local int64_t CountingAllocator::count = 0;

/// Puts a CountingAllocator in front of LibTorch's while it lives.
class CountingScope {
 public:
  CountingScope() : before_(c10::GetCPUAllocator()), counting_(before_) {
    c10::SetCPUAllocator(&counting_, kPriority);
  }
  ~CountingScope() { c10::SetCPUAllocator(before_, kPriority); }

 private:
  static constexpr uint8_t kPriority = 100;
  c10::Allocator* before_;
  CountingAllocator counting_;
};

class MemoryTest : public ::testing::TestWithParam<std::tuple<Strategy, int, int>> {
 protected:
  Strategy strategy() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  Schedule schedule() const {
    return {.name = "",
            .steps = 5,
            .micro_steps = std::get<2>(GetParam()),
            .bucket_bytes = kBucketBytes};
  }
  bool lands_in_pool() const { return strategy() != Strategy::kZero1 || size() == 1; }
};

int64_t largest_unit_bytes(const Engine& engine, int size) {
  const UnitPlan plan(engine.parameters(),
                      bucket_membership(engine.parameters(), kBucketBytes, kBucketBytes), size);
  int64_t largest = 0;
  for (const PlannedUnit& unit : plan) largest = std::max(largest, unit.layout.bytes());
  return largest;
}

TEST_P(MemoryTest, PersistentBytesEqualTheFormulaExactly) {
  const auto check = [this](Engine& engine, int) {
    const MemoryBytes now = engine.memory().now();
    const MemoryBytes predicted = engine.predicted_memory(schedule().micro_steps);
    for (const MemoryClass memory_class :
         {MemoryClass::kParameters, MemoryClass::kGradients, MemoryClass::kOptimizer}) {
      EXPECT_EQ(now[memory_class], predicted[memory_class]) << to_string(memory_class);
      EXPECT_GT(predicted[MemoryClass::kParameters], 0);
    }
    if (lands_in_pool()) {
      EXPECT_EQ(predicted[MemoryClass::kLanding], 0);
      EXPECT_LE(now[MemoryClass::kLanding], 2 * largest_unit_bytes(engine, size()));
      EXPECT_LE(engine.memory().peak()[MemoryClass::kLanding],
                2 * largest_unit_bytes(engine, size()));
    } else {
      EXPECT_EQ(now[MemoryClass::kLanding], predicted[MemoryClass::kLanding]);
    }
  };
  train_on_threads(subject("DeepMlp"), at::kFloat, strategy(), schedule(), size(),
                   {.after_step = check});
}

TEST_P(MemoryTest, MixedDtypesEqualTheFormulaToo) {
  const auto check = [this](Engine& engine, int) {
    const MemoryBytes now = engine.memory().now();
    const MemoryBytes predicted = engine.predicted_memory(schedule().micro_steps);
    EXPECT_EQ(now[MemoryClass::kParameters], predicted[MemoryClass::kParameters]);
    EXPECT_EQ(now[MemoryClass::kGradients], predicted[MemoryClass::kGradients]);
    EXPECT_EQ(now[MemoryClass::kOptimizer], predicted[MemoryClass::kOptimizer]);
  };
  train_on_threads(subject("MixedDtypes"), at::kFloat, strategy(), schedule(), size(),
                   {.after_step = check});
}

TEST_P(MemoryTest, TheEngineAllocatesNothingAfterTheSecondStep) {
  std::vector<std::vector<int64_t>> by_rank(static_cast<size_t>(size()));
  train_on_threads(subject("DeepMlp"), at::kFloat, strategy(), schedule(), size(),
                   {.after_step = [&by_rank](Engine& engine, int) {
                     by_rank[static_cast<size_t>(engine.group().rank())].push_back(
                         engine.memory().allocations());
                   }});
  for (const std::vector<int64_t>& allocations : by_rank) {
    ASSERT_EQ(allocations.size(), 5u);
    EXPECT_EQ(allocations[4], allocations[1]);
  }
}

/// How many tensors' memory one rank asked LibTorch for in the third step.
struct Asked {
  int64_t in_backward = 0;
  int64_t in_step = 0;
};

Asked count_asked(Net& net, Engine* engine, const Schedule& schedule, int rank) {
  Asked asked;
  for (int step = 0; step < 3; ++step) {
    asked = {};
    for (int micro = 0; micro < schedule.micro_steps; ++micro) {
      const Moment moment{.step = step, .rank = rank};
      const Batch batch = batch_of(subject("DeepMlp"), at::kFloat, schedule, moment, micro);
      const at::Tensor loss = loss_of(net, batch, moment, schedule);
      if (engine == nullptr) net.zero_grad();
      const int64_t before = CountingAllocator::count;
      loss.backward();
      asked.in_backward += CountingAllocator::count - before;
    }
    const int64_t before = CountingAllocator::count;
    if (engine != nullptr) engine->step();
    asked.in_step = CountingAllocator::count - before;
  }
  return asked;
}

TEST_P(MemoryTest, GradientsAndTheStepAskForNoTensorMemoryBeyondAutogradsOwn) {
  const CountingScope counting;
  std::vector<Asked> by_rank(static_cast<size_t>(size()));
  Asked plain;
  run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
    const std::shared_ptr<Net> net = prepare(subject("DeepMlp").make(), at::kFloat, 1);
    if (world->rank() == 0) {
      const std::shared_ptr<Net> other = prepare(subject("DeepMlp").make(), at::kFloat, 1);
      plain = count_asked(*other, nullptr, schedule(), 0);
    }
    const auto engine = parallelize(net, make_plan(*net),
                                    {.strategy = strategy(),
                                     .max_grad_norm = 0.1,
                                     .bucket_bytes = kBucketBytes,
                                     .first_bucket_bytes = kBucketBytes},
                                    world);
    by_rank[static_cast<size_t>(world->rank())] =
        count_asked(*net, engine.get(), schedule(), world->rank());
  });
  EXPECT_GT(plain.in_backward, 0) << "the counter does not count";
  for (const Asked& asked : by_rank) {
    EXPECT_EQ(asked.in_step, 0);
    EXPECT_EQ(asked.in_backward, plain.in_backward);
  }
}

INSTANTIATE_TEST_SUITE_P(, MemoryTest,
                         ::testing::Combine(::testing::Values(Strategy::kDdp, Strategy::kZero1,
                                                              Strategy::kZero2),
                                            ::testing::Values(1, 2, 3), ::testing::Values(1, 3)),
                         [](const auto& info) {
                           return std::string(to_string(std::get<0>(info.param))) + "_World" +
                                  std::to_string(std::get<1>(info.param)) + "_MicroSteps" +
                                  std::to_string(std::get<2>(info.param));
                         });

TEST(Memory, NoSyncNeedsNoSecondBufferUnderZero1) {
  const Schedule schedule{.name = "",
                          .steps = 2,
                          .micro_steps = 3,
                          .sync = Schedule::Sync::kLast,
                          .bucket_bytes = kBucketBytes};
  train_on_threads(subject("DeepMlp"), at::kFloat, Strategy::kZero1, schedule, 2,
                   {.after_step = [](Engine& engine, int) {
                     EXPECT_EQ(engine.memory().now()[MemoryClass::kGradients], 0);
                     EXPECT_EQ(engine.predicted_memory(1)[MemoryClass::kGradients], 0);
                   }});
}

/// The negative control: the formula for another number of micro-steps or another strategy differs.
TEST(Memory, TheFormulaTellsStrategiesApart) {
  std::vector<MemoryBytes> predicted;
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2}) {
    std::mutex mutex;
    train_on_threads(subject("DeepMlp"), at::kFloat, strategy, {.name = "", .steps = 1}, 2,
                     {.after_step = [&](Engine& engine, int) {
                       const std::lock_guard lock(mutex);
                       if (engine.group().rank() == 0) {
                         predicted.push_back(engine.predicted_memory(1));
                         predicted.push_back(engine.predicted_memory(3));
                       }
                     }});
  }
  ASSERT_EQ(predicted.size(), 6u);
  const auto ddp = predicted[0], zero1 = predicted[2], zero1_thrice = predicted[3],
             zero2 = predicted[4];
  EXPECT_GT(ddp.total(), zero1.total());
  EXPECT_GT(zero1.total(), zero2.total());
  EXPECT_GT(zero1_thrice.total(), zero1.total());
  EXPECT_EQ(ddp[MemoryClass::kOptimizer], 2 * zero2[MemoryClass::kOptimizer]);
}

}  // namespace
}  // namespace tessera::testing

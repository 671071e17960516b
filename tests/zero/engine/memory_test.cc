#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include <c10/core/CPUAllocator.h>
#include <torch/torch.h>

#include "tessera/memory_meter.h"
#include "tessera/parallelize.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

constexpr int64_t kBucketBytes = 2048;

/// Counts each thread's allocations by LibTorch.
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

/// While alive, puts a CountingAllocator in front of LibTorch's.
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

/// A configuration, a world and a number of backwards per step.
struct MemoryCase {
  Configuration configuration;
  int world;
  int micro_steps;
};

std::vector<MemoryCase> memory_cases() {
  std::vector<MemoryCase> cases;
  const std::vector<int> worlds =
      takes_all_rows() ? std::vector<int>{1, 2, 3, 4, 6} : std::vector<int>{1, 3, 4};
  for (const int world : worlds) {
    for (const Configuration& configuration : configurations_of_world(world)) {
      if (configuration.free_eagerly) continue;  // tests only; no user frees eagerly
      if (world > 3 && !configuration.degrees.has_value() &&
          configuration.reshard_after_forward != 2)
        continue;
      const std::vector<int> both = {1, 3};
      const size_t turn = cases.size() % 2;
      for (size_t i = 0; i < both.size(); ++i) {
        if (takes_all_rows() || i == turn) cases.push_back({configuration, world, both[i]});
        if (!takes_all_rows() && i == turn) break;
      }
    }
  }
  return cases;
}

class MemoryTest : public ::testing::TestWithParam<MemoryCase> {
 protected:
  const Configuration& configuration() const { return GetParam().configuration; }
  int size() const { return GetParam().world; }
  Degrees degrees() const { return configuration().degrees_at(size()); }
  Schedule schedule() const {
    return {.name = "",
            .steps = 5,
            .micro_steps = GetParam().micro_steps,
            .bucket_bytes = kBucketBytes};
  }
  /// If gradients are whole and the optimizer is split, gradients are reduced in the buffer that
  /// collects them.
  bool lands_in_pool() const { return degrees().gradients > 1 || degrees().optimizer == 1; }
};

/// The largest unit: the root, or one of the others.
int64_t largest_unit_bytes(const Engine& engine, bool is_root = false) {
  int64_t largest = 0;
  for (const PlannedUnit& unit : engine.units()) {
    if ((unit.kind == UnitKind::kRoot) == is_root) {
      largest = std::max(largest, unit.layout.bytes());
    }
  }
  return largest;
}

constexpr MemoryClass kPersistentClasses[] = {
    MemoryClass::kParameters, MemoryClass::kGradients, MemoryClass::kOptimizer,
    MemoryClass::kUnshardedParameters, MemoryClass::kRoot};

void expect_persistent_bytes(const Engine& engine, int micro_steps) {
  const MemoryBytes now = engine.memory().now();
  const MemoryBytes predicted = predicted_memory(engine, micro_steps);
  for (const MemoryClass memory_class : kPersistentClasses) {
    EXPECT_EQ(now[memory_class], predicted[memory_class]) << to_string(memory_class);
  }
}

TEST_P(MemoryTest, PersistentBytesEqualTheFormulaExactly) {
  const auto check = [this](Engine& engine, int) {
    expect_persistent_bytes(engine, schedule().micro_steps);
    const MemoryBytes now = engine.memory().now();
    const MemoryBytes predicted = predicted_memory(engine, schedule().micro_steps);
    EXPECT_GT(predicted[MemoryClass::kParameters], 0);
    EXPECT_EQ(engine.gather_counts().unsharded_buffers_added, 0);
    if (lands_in_pool()) {
      const int64_t bound = 2 * largest_unit_bytes(engine) + largest_unit_bytes(engine, true);
      EXPECT_EQ(predicted[MemoryClass::kGradientBuffers], 0);
      EXPECT_LE(now[MemoryClass::kGradientBuffers], bound);
      EXPECT_LE(engine.memory().peak()[MemoryClass::kGradientBuffers], bound);
    } else {
      EXPECT_EQ(now[MemoryClass::kGradientBuffers], predicted[MemoryClass::kGradientBuffers]);
    }
  };
  train_on_threads(subject("DeepMlp"), at::kFloat, configuration(), schedule(), size(),
                   {.after_step = check});
}

TEST_P(MemoryTest, MixedDtypesEqualTheFormulaToo) {
  const auto check = [this](Engine& engine, int) {
    expect_persistent_bytes(engine, schedule().micro_steps);
  };
  for (const char* model : {"MixedDtypes", "FrozenBlocks", "TiedBlocks"}) {
    SCOPED_TRACE(model);
    train_on_threads(subject(model), at::kFloat, configuration(), schedule(), size(),
                     {.after_step = check});
  }
}

TEST_P(MemoryTest, SixteenBitParametersWithMastersEqualTheFormulaToo) {
  Configuration configuration = this->configuration();
  configuration.precision.parameters = at::kBFloat16;
  const auto check = [this](Engine& engine, int) {
    expect_persistent_bytes(engine, schedule().micro_steps);
  };
  train_on_threads(subject("Blocks"), at::kFloat, configuration, schedule(), size(),
                   {.after_step = check});
}

/// Between backward and step a rank holds least: no whole gradient if gradients are split, no whole
/// parameter if parameters are.
TEST_P(MemoryTest, NothingSplitIsWholeAfterBackward) {
  const auto check = [this](Engine& engine, int) {
    for (const Parameter& parameter : engine.parameters()) {
      const at::Tensor& tensor = parameter.tensor;
      if (degrees().parameters > 1) {
        EXPECT_THROW(tensor.const_data_ptr(), c10::Error) << parameter.name;
      } else {
        EXPECT_NO_THROW(tensor.const_data_ptr()) << parameter.name;
      }
      if (!tensor.grad().defined()) continue;
      if (degrees().optimizer > 1) {
        EXPECT_THROW(tensor.grad().const_data_ptr(), c10::Error) << parameter.name;
      }
    }
    if (degrees().gradients > 1) {
      int64_t whole = 0;
      for (const PlannedUnit& unit : engine.units()) whole += unit.layout.bytes();
      EXPECT_LE(engine.memory().now()[MemoryClass::kGradients], whole / degrees().gradients);
      EXPECT_LT(engine.memory().now()[MemoryClass::kGradientBuffers], whole);
    }
  };
  train_on_threads(subject("Blocks"), at::kFloat, configuration(), schedule(), size(),
                   {.after_backward = check});
}

TEST_P(MemoryTest, TheEngineAllocatesNothingAfterTheSecondStep) {
  std::vector<std::vector<int64_t>> by_rank(static_cast<size_t>(size()));
  train_on_threads(subject("DeepMlp"), at::kFloat, configuration(), schedule(), size(),
                   {.after_step = [&by_rank](Engine& engine, int) {
                     by_rank[static_cast<size_t>(engine.group().rank())].push_back(
                         engine.memory().allocations());
                   }});
  for (const std::vector<int64_t>& allocations : by_rank) {
    ASSERT_EQ(allocations.size(), 5u);
    EXPECT_EQ(allocations[4], allocations[1]);
  }
}

/// Number of LibTorch's allocations by one rank in the third step.
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
    Schedule clipped = schedule();
    clipped.max_grad_norm = 0.1;
    const auto engine =
        parallelize(net, make_plan(*net), options_of(configuration(), clipped), world);
    by_rank[static_cast<size_t>(world->rank())] =
        count_asked(*net, engine.get(), schedule(), world->rank());
  });
  EXPECT_GT(plain.in_backward, 0) << "the counter does not count";
  for (const Asked& asked : by_rank) {
    EXPECT_EQ(asked.in_step, 0);
    EXPECT_EQ(asked.in_backward, plain.in_backward);
  }
}

INSTANTIATE_TEST_SUITE_P(, MemoryTest, ::testing::ValuesIn(memory_cases()), [](const auto& info) {
  return info.param.configuration.name + "_World" + std::to_string(info.param.world) +
         "_MicroSteps" + std::to_string(info.param.micro_steps);
});

TEST(Memory, NoSyncNeedsNoSecondBufferUnderZero1) {
  const Schedule schedule{.name = "",
                          .steps = 2,
                          .micro_steps = 3,
                          .sync = Schedule::Sync::kLast,
                          .bucket_bytes = kBucketBytes};
  train_on_threads(subject("DeepMlp"), at::kFloat, configuration_of(Strategy::kZero1), schedule, 2,
                   {.after_step = [](Engine& engine, int) {
                     EXPECT_EQ(engine.memory().now()[MemoryClass::kGradients], 0);
                     EXPECT_EQ(predicted_memory(engine, 1)[MemoryClass::kGradients], 0);
                   }});
}

/// The assertions of PyTorch's test_fully_shard_memory, with its names: `sharded` is a rank's part
/// of the parameters, `block` the largest unit, `other` the parameters in no block. Its last bound,
/// three times `sharded` after zero_grad, does not hold here, because the buffer of reduced
/// gradients stays.
TEST(Memory, Scenario46_BoundsOfFullyShardHold) {
  for (const int world : {2, 3}) {
    Configuration configuration = configuration_of(Strategy::kZero3);
    configuration.wrap = Configuration::Wrap::kBlocks;
    const auto model_bytes = [](const Engine& engine) {
      MemoryBytes peak = engine.memory().peak();
      return peak.total() - peak[MemoryClass::kOptimizer] - peak[MemoryClass::kControl];
    };
    run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
      const std::shared_ptr<Net> net = prepare(subject("Blocks").make(), at::kFloat, 1);
      const auto engine = parallelize(net, make_plan(*net), options_of(configuration), group);
      const int64_t sharded = engine->units().bytes() / world;
      const int64_t block = largest_unit_bytes(*engine);
      const int64_t other = largest_unit_bytes(*engine, /*is_root=*/true);
      for (int step = 0; step < 3; ++step) {
        const Moment moment{.step = step, .rank = group->rank()};
        const Batch batch = batch_of(subject("Blocks"), at::kFloat, {.name = ""}, moment, 0);
        const at::Tensor loss = loss_of(*net, batch, moment, {.name = ""});
        if (step == 0) {
          EXPECT_LE(model_bytes(*engine) - engine->memory().now()[MemoryClass::kGradients],
                    sharded + 3 * block + other);
        }
        loss.backward();
        EXPECT_LE(model_bytes(*engine), 2 * sharded + 4 * block + other);
        engine->step();
        const MemoryBytes now = engine->memory().now();
        EXPECT_LE(now[MemoryClass::kParameters] + now[MemoryClass::kGradients] +
                      now[MemoryClass::kOptimizer],
                  4 * sharded);
      }
    });
  }
}

/// Negative control: the bounds are tight enough to notice a model that stays whole.
TEST(Memory, UnitsThatStayWholeBreakThoseBounds) {
  Configuration configuration = resharding(1);
  configuration.wrap = Configuration::Wrap::kBlocks;
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
    const std::shared_ptr<Net> net = prepare(subject("Blocks").make(), at::kFloat, 1);
    const auto engine = parallelize(net, make_plan(*net), options_of(configuration), group);
    const int64_t bound = engine->units().bytes() / 3 + 3 * largest_unit_bytes(*engine);
    EXPECT_GT(engine->memory().now()[MemoryClass::kUnshardedParameters], bound);
  });
}

/// Negative control: the formula for another number of micro-steps or another strategy differs.
TEST(Memory, TheFormulaTellsStrategiesApart) {
  const auto predictions = [](const Configuration& configuration) {
    std::vector<MemoryBytes> predicted;
    std::mutex mutex;
    train_on_threads(subject("DeepMlp"), at::kFloat, configuration, {.name = "", .steps = 1}, 2,
                     {.after_step = [&](Engine& engine, int) {
                       const std::lock_guard lock(mutex);
                       if (engine.group().rank() == 0) {
                         predicted = {predicted_memory(engine, 1), predicted_memory(engine, 3)};
                       }
                     }});
    return predicted;
  };
  const auto ddp = predictions(configuration_of(Strategy::kDdp));
  const auto zero1 = predictions(apart_configurations()[0]);
  const auto zero2 = predictions(apart_configurations()[1]);
  const auto zero3 = predictions(apart_configurations()[2]);
  EXPECT_GT(ddp[0].total(), zero1[0].total());
  EXPECT_GT(zero1[0].total(), zero2[0].total());
  EXPECT_GT(zero1[1].total(), zero1[0].total());
  EXPECT_GT(zero2[0].total(), zero3[0].total());
  EXPECT_EQ(ddp[0][MemoryClass::kOptimizer], 2 * zero2[0][MemoryClass::kOptimizer]);

  // Two ranks that share parameters hold half of them each, in every configuration, and no
  // unsharded-parameter buffers.
  for (const Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kZero3}) {
    const auto shared = predictions(configuration_of(strategy));
    EXPECT_NEAR(shared[0][MemoryClass::kParameters], ddp[0][MemoryClass::kParameters] / 2, 4096);
    EXPECT_EQ(shared[0][MemoryClass::kUnshardedParameters] + shared[0][MemoryClass::kRoot], 0);
  }
}

}  // namespace
}  // namespace tessera::internal::testing

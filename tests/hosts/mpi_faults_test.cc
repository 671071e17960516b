// Ranks that differ, over MPI (the fake): every rank names the first difference, and no step is
// applied. Numbers are those of the catalogue of faults (docs/testing.md).
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/core/comm/mpi/mpi_ranks.h"
#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/trainer.h"
#include "tessera/tests/hosts/mpi_reads.h"

namespace tessera::internal::testing {
namespace {

constexpr int kMpiFaultWorld = 3;

std::vector<Ending> endings_over_mpi(const RankBody& body) {
  return outcomes_of_ranks(
      kMpiFaultWorld, [&, over = over_mpi(kMpiFaultWorld)](std::shared_ptr<ProcessGroup> world) {
        body(over(std::move(world)));
      });
}

bool is_odd_one(ProcessGroup& world) { return world.rank() == world.size() - 1; }

void parallelize_over(const std::shared_ptr<ProcessGroup>& world,
                      const std::function<void(torch::nn::Module&, bool odd)>& extend) {
  auto net = std::make_shared<FaultNet>();
  extend(*net, is_odd_one(*world));
  parallelize(net, adamw(), small_options_of(configuration_of(Strategy::kZero1)), world);
}

TEST(MpiFaults, Case36ParametersInAnotherOrder) {
  const auto endings = endings_over_mpi([](const std::shared_ptr<ProcessGroup>& world) {
    parallelize_over(world, [](torch::nn::Module& net, bool odd) {
      for (const char* name : {odd ? "right" : "left", odd ? "left" : "right"}) {
        net.register_parameter(name, torch::ones({2, 3}));
      }
    });
  });
  EXPECT_THAT(endings, every_rank_refuses(
                           {"[parallelize] rank 2", "differs from rank 0", "'left'", "'right'"}));
}

TEST(MpiFaults, Case37ParametersThatDiffer) {
  const at::Tensor usual = torch::ones({2, 3});
  const struct {
    at::Tensor odd;
    Parts parts;
  } differences[] = {{at::Tensor(), {"'more'", "shape [2, 3]"}},
                     {torch::ones({3, 2}), {"'more'", "shape [2, 3]", "shape [3, 2]"}},
                     {usual.to(at::kDouble), {"'more'", "Float", "Double"}}};
  for (const auto& [odd_value, parts] : differences) {
    const auto endings = endings_over_mpi([&](const std::shared_ptr<ProcessGroup>& world) {
      parallelize_over(world, [&](torch::nn::Module& net, bool odd) {
        const at::Tensor& value = odd ? odd_value : usual;
        if (value.defined()) net.register_parameter("more", value.clone());
      });
    });
    Parts expected = parts;
    expected.push_back("differs from rank 0");
    EXPECT_THAT(endings, every_rank_refuses(expected));
  }
}

TEST(MpiFaults, Case38AnotherCallThanTheOthersChangesNothing) {
  for (const Configuration& configuration : named_configurations()) {
    SCOPED_TRACE(configuration);
    // Otherwise one rank gathers while others vote on another group, which only a timeout can end.
    if (configuration.splits_parameters() && !mpi_reads_one_sided()) continue;
    for (const bool is_extra : {true, false}) {
      std::vector<int64_t> steps(kMpiFaultWorld, -1);
      const auto endings = endings_over_mpi([&](const std::shared_ptr<ProcessGroup>& world) {
        Trainer trainer(world, configuration);
        trainer.train(0);
        const bool odd = is_odd_one(*world);
        if (is_extra || !odd) trainer.backward(1);
        if (is_extra && odd) trainer.backward(2);
        try {
          trainer.engine->step();
        } catch (const std::exception&) {
          steps[static_cast<size_t>(world->rank())] = trainer.engine->last_result().step;
          throw;
        }
      });
      EXPECT_THAT(endings,
                  every_rank_loses_contact({"rank 2 called ", "where rank", "'vote of the step'"}));
      for (const int64_t step : steps) EXPECT_LE(step, 1) << "a step was applied";
    }
  }
}

TEST(MpiFaults, Case39OptionsThatDiffer) {
  struct Difference {
    std::function<void(Options&)> change;
    Parts parts;
  };
  const std::vector<Difference> differences = {
      {[](Options& options) { options.strategy = Strategy::kZero1; },
       {"strategy ddp", "strategy zero1"}},
      {[](Options& options) {
         options.bucket_bytes = {1024, 1025};
       },
       {"bucket_bytes 1024 1024", "bucket_bytes 1024 1025"}},
      {[](Options& options) { options.precision.parameters = at::kBFloat16; }, {"BFloat16"}},
      {[](Options& options) { options.max_grad_norm = 0.1; },
       {"max_grad_norm inf", "max_grad_norm 0.1"}}};
  for (const Difference& difference : differences) {
    const auto endings = endings_over_mpi([&](const std::shared_ptr<ProcessGroup>& world) {
      Options options = small_options_of(configuration_of(Strategy::kDdp));
      if (is_odd_one(*world)) difference.change(options);
      parallelize(std::make_shared<FaultNet>(), adamw(), options, world);
    });
    Parts expected = difference.parts;
    expected.push_back("differs from rank 0");
    EXPECT_THAT(endings, every_rank_refuses(expected));
  }
}

TEST(MpiFaults, Case40OperationOrRootThatDiffers) {
  const auto reduced = endings_over_mpi([](const std::shared_ptr<ProcessGroup>& world) {
    const at::Tensor tensor = at::ones({3});
    world->all_reduce(tensor, is_odd_one(*world) ? ReduceOp::kMax : ReduceOp::kSum, "x")->wait();
  });
  EXPECT_THAT(reduced, every_rank_loses_contact({"rank 2 called all_reduce MAX float32[3] 'x'",
                                                 "called all_reduce SUM float32[3] 'x'"}));
  const auto rooted = endings_over_mpi([](const std::shared_ptr<ProcessGroup>& world) {
    const at::Tensor tensor = at::ones({3});
    world->broadcast(tensor, is_odd_one(*world) ? 1 : 0, "x")->wait();
  });
  EXPECT_THAT(rooted, every_rank_loses_contact(
                          {"rank 2 called broadcast float32[3] from rank 1", "from rank 0"}));
}

/// If all ranks do the same, there is no difference.
TEST(MpiFaults, ControlAlikeIsFine) {
  const auto endings = endings_over_mpi([](const std::shared_ptr<ProcessGroup>& world) {
    Trainer trainer(world, configuration_of(Strategy::kZero3));
    trainer.train(0);
    trainer.train(1);
  });
  EXPECT_THAT(endings, ::testing::Each(is_fine()));
}

}  // namespace
}  // namespace tessera::internal::testing

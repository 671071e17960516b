// Buffers and frozen parameters over memory that the process may only read: constants of the
// program, mapped files. Equal values need no write.
#include <sys/mman.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoint.h"
#include "tessera/core/layout/read_only_memory.h"
#include "tessera/engine.h"
#include "tessera/parallelize.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kPageNumel = 4;

/// A read-only page with the numbers first, first + 1, ...
class ReadOnlyPage {
 public:
  explicit ReadOnlyPage(float first) {
    void* const memory =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    numbers_ = static_cast<float*>(memory);
    for (int64_t i = 0; i < kPageNumel; ++i) numbers_[i] = first + static_cast<float>(i);
    ::mprotect(memory, kBytes, PROT_READ);
  }
  ~ReadOnlyPage() { ::munmap(numbers_, kBytes); }
  ReadOnlyPage(const ReadOnlyPage&) = delete;
  ReadOnlyPage& operator=(const ReadOnlyPage&) = delete;

  at::Tensor tensor() const { return torch::from_blob(numbers_, {kPageNumel}); }

 private:
  static constexpr size_t kBytes = 4096;
  float* numbers_;
};

struct TableNet : torch::nn::Module {
  explicit TableNet(const ReadOnlyPage& page, bool is_parameter) {
    weight = register_parameter("weight", torch::ones({5}));
    table = is_parameter ? register_parameter("table", page.tensor(), /*requires_grad=*/false)
                         : register_buffer("table", page.tensor());
  }
  at::Tensor loss() const { return (weight.sum() * table.sum()); }
  at::Tensor weight, table;
};

Options strategy_options(Strategy strategy) {
  Options options;
  options.strategy = strategy;
  return options;
}

/// The strategy, and whether the tensor is a frozen parameter.
class ReadOnly : public ::testing::TestWithParam<std::tuple<Strategy, bool>> {
 protected:
  Strategy strategy() const { return std::get<0>(GetParam()); }
  bool is_parameter() const { return std::get<1>(GetParam()); }
  /// A split parameter moves into the engine's memory.
  bool stays(int world) const {
    return !is_parameter() || strategy() != Strategy::kZero3 || world == 1;
  }
};
INSTANTIATE_TEST_SUITE_P(Strategies, ReadOnly,
                         ::testing::Combine(::testing::Values(Strategy::kDdp, Strategy::kZero2,
                                                              Strategy::kZero3),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(to_string(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "Parameter" : "Buffer");
                         });

TEST_P(ReadOnly, TrainsWhereValuesAreEqual) {
  for (const int world : {1, 3}) {
    for (const BufferSync sync : {BufferSync::kOnce, BufferSync::kBroadcast, BufferSync::kMean}) {
      run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
        const ReadOnlyPage page(0.5f);
        const auto net = std::make_shared<TableNet>(page, is_parameter());
        Options options = strategy_options(strategy());
        options.buffers = sync;
        const auto engine = parallelize(net, torch::optim::SGDOptions(0.1), options, group);
        net->loss().backward();
        engine->step();
        engine->modify_parameters(0, [&] { net->weight.data().fill_(2); });
        engine->load_state_dict(engine->state_dict(StateScope::kEveryRank));
        const auto scope = engine->full_parameters();
        EXPECT_TRUE(at::equal(net->table, page.tensor()));
      });
    }
  }
}

/// If rank 1 may not write its buffer, it cannot follow another rank's changes.
TEST(ReadOnlyOnOneRank, IsRefusedOnAllRanksOnceAnotherRankHasChangedIts) {
  for (const BufferSync sync : {BufferSync::kBroadcast, BufferSync::kMean}) {
    run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
      const int rank = group->rank();
      const ReadOnlyPage page(0.5f);
      const auto net = std::make_shared<TableNet>(page, /*is_parameter=*/false);
      if (rank != 1) net->table.set_data(page.tensor().clone());
      Options options;
      options.buffers = sync;
      const auto engine = parallelize(net, torch::optim::SGDOptions(0.1), options, group);
      const auto step = [&] {
        net->loss().backward();
        engine->step();
      };
      step();
      if (rank == 0) net->table.add_(1);
      EXPECT_THAT(message_of(step), AllOf(HasSubstr("rank 0"), HasSubstr("buffer 'table'"),
                                          HasSubstr("memory that may not be written"),
                                          HasSubstr("clone()"), HasSubstr("ignores_buffers")));
      if (rank == 0) net->table.copy_(page.tensor());
      engine->zero_grad();
      step();
      EXPECT_TRUE(at::equal(net->table, page.tensor()));
    });
  }
}

TEST_P(ReadOnly, IsNamedWhereARankWouldHaveToTakeOtherValues) {
  const auto errors = run_ranks_expecting_errors(3, [&](std::shared_ptr<ProcessGroup> group) {
    const ReadOnlyPage page(group->rank() == 1 ? 7.0f : 0.5f);
    parallelize(std::make_shared<TableNet>(page, is_parameter()), torch::optim::SGDOptions(0.1),
                strategy_options(strategy()), group);
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 1"), HasSubstr("'table'"),
                                 HasSubstr("memory that this process may not write"),
                                 HasSubstr("clone()"), HasSubstr("ignores_buffers"))));
}

TEST_P(ReadOnly, RefusesAStateWithOtherValuesAndChangesNothing) {
  const TemporaryDirectory directory;
  for (const int world : {1, 3}) {
    const std::string path = directory.path() + "/" + std::to_string(world);
    StateDict other;
    run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
      const ReadOnlyPage page(3.5f);
      const auto net = std::make_shared<TableNet>(page, is_parameter());
      const auto engine =
          parallelize(net, torch::optim::SGDOptions(0.1), strategy_options(strategy()), group);
      net->loss().backward();
      engine->step();
      StateDict state = engine->state_dict(StateScope::kEveryRank);
      save_checkpoint(*engine, path);
      if (group->rank() == 0) other = std::move(state);
    });
    run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
      const ReadOnlyPage page(0.5f);
      const auto net = std::make_shared<TableNet>(page, is_parameter());
      const auto engine =
          parallelize(net, torch::optim::SGDOptions(0.1), strategy_options(strategy()), group);
      const auto refuses =
          AllOf(HasSubstr("nothing was changed"), HasSubstr("table"), HasSubstr("may not write"));
      const std::string said = message_of([&] { engine->load_state_dict(other); });
      EXPECT_THAT(said,
                  stays(world) ? ::testing::Matcher<std::string>(refuses) : "nothing was thrown");
      const std::string said_of_file = message_of([&] { load_checkpoint(*engine, path); });
      EXPECT_THAT(said_of_file,
                  stays(world) ? ::testing::Matcher<std::string>(refuses) : "nothing was thrown");
      const auto scope = engine->full_parameters();
      EXPECT_EQ(at::equal(net->weight, torch::ones({5})), stays(world));
      EXPECT_EQ(at::equal(net->table, page.tensor()), stays(world));
    });
  }
}

TEST(ReadOnlyMemory, OfAViewWithGapsIsNotWritten) {
  struct Gaps : torch::nn::Module {
    explicit Gaps(const at::Tensor& table) {
      register_parameter("weight", torch::ones({5}));
      register_buffer("table", table);
    }
  };
  for (const int world : {1, 3}) {
    run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
      const ReadOnlyPage page(0.5f);
      const at::Tensor view = page.tensor().view({2, 2}).t().narrow(1, 0, 1);
      const auto engine = parallelize(std::make_shared<Gaps>(view), torch::optim::SGDOptions(0.1),
                                      strategy_options(Strategy::kDdp), group);
      EXPECT_EQ(engine->steps(), 0);
    });
  }
}

TEST(ReadOnlyMemory, KnowsWhatMayBeWritten) {
  static const float kConstant[kPageNumel] = {1, 2, 3, 4};
  const ReadOnlyPage page(1.0f);
  const ReadOnlyMemory memory;
  EXPECT_TRUE(memory.holds(page.tensor()));
  EXPECT_TRUE(memory.holds(torch::from_blob(const_cast<float*>(kConstant), {kPageNumel})));
  const at::Tensor own = page.tensor().clone();
  EXPECT_FALSE(memory.holds(own));
  EXPECT_FALSE(memory.holds(at::empty({0})));
  EXPECT_FALSE(memory.holds(at::empty({3}, at::kMeta)));
  EXPECT_EQ(memory.problem(page.tensor(), own), "");
  EXPECT_THAT(memory.problem(page.tensor(), own + 1), HasSubstr("may not write"));
  EXPECT_EQ(memory.problem(own, own + 1), "");
}

}  // namespace
}  // namespace tessera::internal::testing

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "tessera/engine.h"
#include "tessera/examples/gpt/corpus.h"
#include "tessera/examples/gpt/evaluation.h"
#include "tessera/examples/gpt/memory_table.h"
#include "tessera/parallelize.h"
#include "tessera/tests/support/rank_threads.h"

namespace gpt {
namespace {

using ::testing::HasSubstr;
using World = std::shared_ptr<tessera::ProcessGroup>;

constexpr ModelSizes kTiny = {.layers = 1, .heads = 2, .width = 16, .context = 8};

at::Tensor some_bytes(int64_t n) {
  auto generator = at::detail::createCPUGenerator(3);
  return at::randint(kVocabulary, {n}, generator, at::kByte);
}

/// The held-out loss on each rank.
std::vector<double> held_out_losses(Gpt& model, int ranks, const EvaluationSize& size) {
  const Windows held_out(some_bytes(8 * 23 + 1), 8);
  std::vector<double> losses(static_cast<size_t>(ranks));
  tessera::internal::testing::run_ranks(ranks, [&](const World& world) {
    losses[static_cast<size_t>(world->rank())] = held_out_loss(model, held_out, size, *world);
  });
  return losses;
}

TEST(HeldOutLoss, IsTheSameOnAllRanksAndAtAllWorldSizes) {
  torch::manual_seed(1);
  Gpt model(kTiny);
  const torch::NoGradGuard no_grad;
  // Windows overlap in only one byte, so the expected value is the plain mean over all of them.
  const Windows all(some_bytes(8 * 23 + 1), 8);
  std::vector<size_t> numbers(23);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  const Batch batch = all.batch(numbers);
  const double expected = model.loss(batch.text, batch.target).item<double>();
  for (const int ranks : {1, 2, 3}) {
    for (const double loss : held_out_losses(model, ranks, {.sequences = 0, .batch = 4})) {
      EXPECT_NEAR(loss, expected, 1e-5) << ranks << " ranks";
    }
  }
  // Some of the windows have another loss, so the comparison above can fail.
  EXPECT_GT(std::abs(held_out_losses(model, 1, {.sequences = 5, .batch = 4})[0] - expected), 1e-4);
}

TEST(HeldOutLoss, WorksWithFewerWindowsThanRanks) {
  torch::manual_seed(1);
  Gpt model(kTiny);
  const double alone = held_out_losses(model, 1, {.sequences = 2, .batch = 4})[0];
  for (const double loss : held_out_losses(model, 3, {.sequences = 2, .batch = 4})) {
    EXPECT_NEAR(loss, alone, 1e-5);
  }
}

TEST(MemoryTable, ShowsEveryRankOnEveryRank) {
  std::mutex mutex;
  std::vector<std::string> tables;
  tessera::internal::testing::run_ranks(3, [&](const World& world) {
    torch::manual_seed(1);
    const auto model = std::make_shared<Gpt>(kTiny);
    const auto engine = tessera::parallelize(model, torch::optim::AdamWOptions(1e-3),
                                             {.strategy = tessera::Strategy::kZero1}, world);
    const std::string table = memory_table(*engine, 1, *world);
    const std::lock_guard lock(mutex);
    tables.push_back(table);
  });
  ASSERT_EQ(tables.size(), 3u);
  EXPECT_EQ(tables[0], tables[1]);
  EXPECT_EQ(tables[0], tables[2]);
  for (const char* part :
       {"memory, MiB", "parameters", "zero1  rank 0  predicted", "zero1  rank 1  measured",
        "zero1  rank 2  peak", "optimizer  gradient buffers "}) {
    EXPECT_THAT(tables[0], HasSubstr(part));
  }
  EXPECT_EQ(std::count(tables[0].begin(), tables[0].end(), '\n'), 10);
}

}  // namespace
}  // namespace gpt

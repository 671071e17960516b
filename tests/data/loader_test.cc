#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include <torch/torch.h>

#include "tessera/distributed_sampler.h"
#include "tessera/tests/data/sampler_ranks.h"
#include "tessera/tests/support/message_of.h"

// The sampler in LibTorch's loaders, which take it by value and prefetch.

namespace tessera::internal::testing {
namespace {

using data::DistributedSampler;
using data::SamplerOptions;
using data::SamplerState;
using ::testing::HasSubstr;

/// Sample i is the number i.
class Numbers : public torch::data::datasets::Dataset<Numbers> {
 public:
  explicit Numbers(size_t size) : size_(size) {}
  torch::data::Example<> get(size_t index) override {
    return {at::full({1}, static_cast<int64_t>(index), at::kLong), at::zeros({1})};
  }
  std::optional<size_t> size() const override { return size_; }

 private:
  size_t size_;
};

template <typename Sampler>
auto loader_of(size_t size, const Sampler& sampler, size_t batch_size, size_t workers,
               bool drop_last = false) {
  return torch::data::make_data_loader(Numbers(size).map(torch::data::transforms::Stack<>()),
                                       sampler,
                                       torch::data::DataLoaderOptions(batch_size)
                                           .workers(workers)
                                           .max_jobs(3 * workers)
                                           .drop_last(drop_last));
}

void append(Samples& all, const at::Tensor& batch) {
  for (int64_t i = 0; i < batch.size(0); ++i) {
    all.push_back(static_cast<size_t>(batch[i].item<int64_t>()));
  }
}

template <typename Loader>
Samples pass_of(Loader& loader) {
  Samples all;
  for (auto& batch : *loader) append(all, batch.data);
  return all;
}

class Loader : public ::testing::TestWithParam<size_t> {};

TEST_P(Loader, SetEpochReachesTheCopyInside) {
  constexpr size_t kSize = 50;
  DistributedSampler sampler(kSize, 2, 1, {.seed = 4});
  const auto loader = loader_of(kSize, sampler, 4, GetParam());
  const Samples first = pass_of(loader);
  EXPECT_EQ(pass_of(loader), first) << "the same epoch again: nothing was consumed";
  sampler.set_epoch(1);
  const Samples second = pass_of(loader);
  EXPECT_NE(second, first);
  DistributedSampler expected(kSize, 2, 1, {.seed = 4});
  expected.set_epoch(1);
  EXPECT_EQ(second, expected.indices());
}

// The control: LibTorch's own sampler would stay at epoch 0.
TEST_P(Loader, LoseTheEpochOfASamplerByValue) {
  torch::data::samplers::DistributedRandomSampler sampler(50, 2, 1);
  const auto loader = loader_of(50, sampler, 4, GetParam());
  const Samples first = pass_of(loader);
  sampler.set_epoch(1);
  EXPECT_EQ(pass_of(loader), first);
}

TEST_P(Loader, KilledAheadOfTheLoopEverySampleComesOnce) {
  constexpr size_t kSize = 50;
  const SamplerOptions options = {.seed = 21};
  const Samples order = order_of(kSize, 0, options);
  for (const int killed_world : {1, 3}) {
    for (const int world : {1, 2, 4}) {
      for (const int steps : {0, 1, 3, 8}) {
        Samples all;
        SamplerState state;
        for (int rank = 0; rank < killed_world; ++rank) {
          DistributedSampler sampler(kSize, killed_world, rank, options);
          const auto loader = loader_of(kSize, sampler, 2, GetParam());
          int step = 0;
          for (auto& batch : *loader) {
            if (step++ == steps) break;
            append(all, batch.data);
            sampler.advance();
          }
          state = sampler.state();
          EXPECT_EQ(state.cursor, 2 * steps * killed_world);
          if (GetParam() > 0 && killed_world == 1) {  // the loader had prefetched for its jobs
            const size_t given = static_cast<size_t>(2 * (steps + 1)) + 2 * 6;
            EXPECT_EQ(sampler.next(1)->front(), order.at(given));
          }
        }
        for (int rank = 0; rank < world; ++rank) {
          DistributedSampler sampler(kSize, world, rank, options);
          sampler.load_state(state);
          const auto loader = loader_of(kSize, sampler, 3, GetParam());
          for (auto& batch : *loader) {
            append(all, batch.data);
            sampler.advance();
          }
          EXPECT_EQ(sampler.state().cursor, kSize);
        }
        const size_t padding = all.size() - kSize;
        EXPECT_LT(padding, static_cast<size_t>(world));
        Samples expected = order;
        expected.insert(expected.end(), order.begin(),
                        order.begin() + static_cast<int64_t>(padding));
        EXPECT_EQ(sorted(all), sorted(expected))
            << killed_world << " ranks, " << steps << " steps, then " << world << " ranks";
      }
    }
  }
}

TEST_P(Loader, DropsItsLastBatchAndGoesOnInTheNextEpoch) {
  DistributedSampler sampler(11, 1, 0, {.shuffle = false});
  const auto loader = loader_of(11, sampler, 4, GetParam(), /*drop_last=*/true);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    int batches = 0;
    for ([[maybe_unused]] auto& batch : *loader) {
      ++batches;
      sampler.advance();
    }
    EXPECT_EQ(batches, 2);
    EXPECT_EQ(sampler.state(),
              (SamplerState{.size = 11, .shuffle = false, .epoch = epoch, .cursor = 8}));
  }
}

TEST_P(Loader, SaysThatSetEpochWasForgotten) {
  DistributedSampler sampler(8, 1, 0);
  const auto loader = loader_of(8, sampler, 4, GetParam());
  for ([[maybe_unused]] auto& batch : *loader) sampler.advance();
  EXPECT_THAT(message_of([&] { pass_of(loader); }), HasSubstr("call set_epoch(1)"));
  sampler.set_epoch(1);
  EXPECT_EQ(pass_of(loader).size(), 8u);
}

INSTANTIATE_TEST_SUITE_P(Workers, Loader, ::testing::Values(0, 2));

/// A data set that calls the sampler itself.
class Stream : public torch::data::datasets::StatefulDataset<Stream, std::vector<size_t>> {
 public:
  explicit Stream(DistributedSampler sampler) : sampler_(std::move(sampler)) {}
  std::optional<Samples> get_batch(size_t batch_size) override { return sampler_.next(batch_size); }
  void reset() override { sampler_.reset(); }
  std::optional<size_t> size() const override { return std::nullopt; }
  void save(torch::serialize::OutputArchive& archive) const override { sampler_.save(archive); }
  void load(torch::serialize::InputArchive& archive) override { sampler_.load(archive); }

 private:
  DistributedSampler sampler_;
};

TEST(StatefulLoader, TakesTheHandleInItsDataSet) {
  DistributedSampler sampler(23, 2, 0, {.seed = 1});
  const auto loader = torch::data::make_data_loader(
      Stream(sampler), torch::data::DataLoaderOptions(3).workers(1).max_jobs(4));
  Samples all;
  int steps = 0;
  for (auto& batch : *loader) {
    if (steps++ == 2) break;
    all.insert(all.end(), batch.begin(), batch.end());
    sampler.advance();
  }
  EXPECT_EQ(sampler.state().cursor, 12);
  DistributedSampler whole(23, 2, 0, {.seed = 1});
  const Samples rest = sampler.indices();
  all.insert(all.end(), rest.begin(), rest.end());
  EXPECT_EQ(all, whole.indices());
}

}  // namespace
}  // namespace tessera::internal::testing

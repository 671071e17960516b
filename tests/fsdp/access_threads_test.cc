#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/fsdp/access_fixture.h"

// Several threads of one rank that read parameters at once. Most of their reads find the unit whole
// and only count themselves; the others free and gather units meanwhile.

namespace tessera::internal::testing {
namespace {

using at::Tensor;

struct Read {
  Tensor split;
  Tensor plain;
};

std::array<Read, 2> reads_of(const SplitRank& rank) {
  return {Read{rank.model->first->weight, rank.plain->first->weight},
          Read{rank.model->second->weight, rank.plain->second->weight}};
}

/// Runs `body(thread)` on several threads at once and waits for them.
void on_threads(int threads, const std::function<void(int)>& body) {
  std::atomic<int> ready{0};
  std::vector<std::thread> running;
  for (int thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      const at::NoGradGuard no_grad;
      ++ready;
      while (ready < threads) std::this_thread::yield();
      body(thread);
    });
  }
  for (std::thread& thread : running) thread.join();
}

TEST(AccessThreads, ReadWhatIsThereWhileOthersChangeUnits) {
  for (const auto& [size, configuration] : split_settings()) {
    SCOPED_TRACE(::testing::Message() << configuration << " world " << size);
    on_split_ranks(size, configuration, [](SplitRank& rank) {
      const auto reads = reads_of(rank);
      std::atomic<int> wrong{0};
      on_threads(3, [&](int thread) {
        for (int i = 0; i < 2000; ++i) {
          // Repeats reads of one unit, in runs of different lengths, so that threads meet in every
          // way.
          const Read& read = reads[static_cast<size_t>(i / (1 + 3 * thread)) % 2];
          if (!at::equal(read.split, read.plain)) ++wrong;
        }
      });
      EXPECT_EQ(wrong, 0);
      EXPECT_GT(rank.engine->gather_counts().frees, 0);
      EXPECT_TRUE(rank.train(0).committed);
    });
  }
}

TEST(AccessThreads, ReadWhatIsThereWhileScopesBeginAndEnd) {
  on_split_ranks(3, apart(configuration_of(Strategy::kZero3)), [](SplitRank& rank) {
    const auto reads = reads_of(rank);
    std::atomic<int> wrong{0};
    on_threads(3, [&](int thread) {
      for (int i = 0; i < 1000; ++i) {
        if (thread == 0) {
          const auto scope = rank.engine->gather(*rank.model->first);
          if (!at::equal(reads[0].split, reads[0].plain)) ++wrong;
        } else {
          const Read& read = reads[static_cast<size_t>(i / 4) % 2];
          if (!at::equal(read.split, read.plain)) ++wrong;
        }
      }
    });
    EXPECT_EQ(wrong, 0);
    EXPECT_TRUE(rank.train(0).committed);
  });
}

TEST(AccessThreads, OperatorsInsideOperatorsKeepWhatTheOuterOneUses) {
  on_split_ranks(1, hostile(apart(configuration_of(Strategy::kZero3))), [](SplitRank& rank) {
    const at::NoGradGuard no_grad;
    const auto sum_of = [](const TwoLayers& model) {
      // Each of these calls operators that read parameters of the same or the other unit.
      return at::linear(at::linear(at::ones({2, 5}), model.first->weight, model.first->bias),
                        model.second->weight, model.second->bias) +
             at::einsum("ij,kj->ik", {model.second->weight, model.second->weight}).sum();
    };
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(sum_of(*rank.model), sum_of(*rank.plain)));
  });
}

}  // namespace
}  // namespace tessera::internal::testing

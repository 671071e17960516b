#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tessera/tests/core/comm/groups/group_suite.h"

namespace tessera::internal::testing {
namespace {

constexpr int64_t kNumel = 1001;  // of a rank's slice

/// A sum over the ranks' values; a call of another group continues it and gathers the slices.
struct Chain {
  Chain(ProcessGroup& sums, ProcessGroup& gathers, int number, bool posted)
      : values(sums.allocate(kNumel * sums.size(), at::kFloat)) {
    values.fill_(number + sums.rank());
    const at::Tensor own = values.narrow(0, kNumel * sums.rank(), kNumel);
    const std::string tag = absl::StrCat("chain ", number);
    sum = sums.check_and_run({.op = Op::kReduceScatter,
                              .output = own,
                              .input = values,
                              .slice = sums.rank(),
                              .posted = posted,
                              .tag = tag});
    gather = gathers.check_and_run({.op = Op::kAllGather,
                                    .output = values,
                                    .input = own,
                                    .posted = posted,
                                    .after = sum,
                                    .tag = tag});
  }

  at::Tensor values;
  std::shared_ptr<Work> sum;
  std::shared_ptr<Work> gather;
};

float sum_of_chain(int size, int number) {
  return static_cast<float>(size * number + size * (size - 1) / 2);
}

void test_chains(const GroupBackend& backend, int size, bool posted) {
  backend.run(size, [&](const std::shared_ptr<ProcessGroup>& world) {
    const auto others = duplicate(*world, "others");
    constexpr int kChains = 50;
    for (int round = 0; round < 3; ++round) {
      std::vector<Chain> chains;
      chains.reserve(kChains);
      for (int i = 0; i < kChains; ++i) chains.emplace_back(*world, *others, i, posted);
      for (int i = kChains - 1; i >= 0; --i) {  // waiting for the second call is enough
        backend.wait(*chains[i].gather);
        EXPECT_TRUE(chains[i].gather->is_completed());
        const at::Tensor values = chains[i].values.cpu();
        EXPECT_TRUE(at::equal(values, at::full_like(values, sum_of_chain(size, i)))) << i;
      }
      for (const Chain& chain : chains) backend.wait(*chain.sum);
    }
  });
}

}  // namespace

void test_chained_calls(const GroupBackend& backend) {
  for (const int size : backend.world_sizes) {
    for (const bool posted : {false, true}) test_chains(backend, size, posted);
  }
}

void test_chains_beside_other_calls(const GroupBackend& backend) {
  for (const int size : backend.world_sizes) {
    backend.run(size, [&](const std::shared_ptr<ProcessGroup>& world) {
      const auto sums = duplicate(*world, "sums"), others = duplicate(*world, "others");
      for (int i = 0; i < 20; ++i) {
        const Chain chain(*sums, *others, i, /*posted=*/true);
        const bool is_blocked = i % size == world->rank();
        if (is_blocked) world->barrier("of the model");
        backend.wait(*chain.gather);
        const at::Tensor values = chain.values.cpu();
        EXPECT_TRUE(at::equal(values, at::full_like(values, sum_of_chain(size, i)))) << i;
        if (!is_blocked) world->barrier("of the model");
      }
    });
  }
}

}  // namespace tessera::internal::testing

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tessera/tests/core/comm/groups/group_suite.h"
#include "tessera/tests/core/comm/groups/suite_tensors.h"
#include "tessera/tests/support/delayed_group.h"

namespace tessera::internal::testing {
namespace {

void exchange(const GroupBackend& backend, ProcessGroup& group, const std::function<void()>& begin,
              const std::function<void()>& begun) {
  const int size = group.size(), rank = group.rank();
  const at::Tensor input = on_device(group, at::arange(size, at::kLong) + 100 * rank);
  at::Tensor output = on_device(group, at::zeros({size}, at::kLong));
  begin();
  begun();
  const auto work = group.all_to_all(output, input, "order");
  backend.wait(*work);
  expect_equal(output, at::arange(size, at::kLong) * 100 + rank, "order");
}

}  // namespace

void test_arrival_in_any_order(const GroupBackend& backend) {
  for (const int size : backend.world_sizes) {
    std::vector<int> ranks(size);  // in the order of arrival
    std::iota(ranks.begin(), ranks.end(), 0);
    std::vector<int> place(size);
    const auto for_each_order = [&](const std::function<void()>& body) {
      do {
        for (int i = 0; i < size; ++i) place[ranks[i]] = i;
        body();
      } while (std::next_permutation(ranks.begin(), ranks.end()));
    };
    if (backend.in_one_process) {
      for_each_order([&] {
        std::atomic<int> arrived{0};
        backend.run(size, [&](const std::shared_ptr<ProcessGroup>& group) {
          exchange(
              backend, *group,
              [&] {
                while (arrived.load() != place[group->rank()]) std::this_thread::yield();
              },
              [&] { arrived.fetch_add(1); });
        });
      });
      continue;
    }
    backend.run(size, [&](const std::shared_ptr<ProcessGroup>& group) {
      const auto turns = duplicate(*group, "turns");
      at::Tensor turn = at::zeros({1});
      for_each_order([&] {
        const int own = place[group->rank()];
        exchange(
            backend, *group,
            [&] {
              if (own > 0) turns->recv(turn, ranks[own - 1], "turn");
            },
            [&] {
              if (own < size - 1) turns->send(turn, ranks[own + 1], "turn");
            });
      });
    });
  }
}

void test_delayed_calls(const GroupBackend& backend) {
  constexpr int kCalls = 60;
  constexpr int64_t kNumel = 1001;  // of a part
  for (const int size : backend.world_sizes) {
    SCOPED_TRACE(absl::StrCat(backend.name, " of ", size));
    backend.run(size, [&](const std::shared_ptr<ProcessGroup>& group) {
      const int rank = group->rank();
      DelayedGroup late(group, {.seed = 17});
      std::vector<at::Tensor> outputs, inputs, expected;
      std::vector<std::shared_ptr<Work>> works;
      for (int i = 0; i < kCalls; ++i) {
        const std::string tag = absl::StrCat("late ", i);
        const at::Tensor ranks = at::arange(size, at::kFloat).repeat_interleave(kNumel);
        inputs.push_back(at::full({kNumel}, i + rank, at::kFloat));
        const float sum = static_cast<float>(size * i + size * (size - 1) / 2);
        if (i % 4 == 0) {
          outputs.push_back(inputs.back().clone());
          expected.push_back(at::full({kNumel}, sum));
          works.push_back(late.all_reduce(outputs.back(), ReduceOp::kSum, tag));
        } else if (i % 4 == 1) {
          outputs.push_back(at::zeros({kNumel * size}));
          expected.push_back(ranks + i);
          works.push_back(late.all_gather(outputs.back(), inputs.back(), tag));
        } else if (i % 4 == 2) {
          inputs.push_back(ranks + rank * i);
          outputs.push_back(at::zeros({kNumel}));
          expected.push_back(
              at::full({kNumel}, static_cast<float>(size * rank + i * size * (size - 1) / 2)));
          works.push_back(late.reduce_scatter(outputs.back(), inputs.back(), ReduceOp::kSum, tag));
        } else {
          const int root = i % size;
          outputs.push_back(inputs.back().clone());
          expected.push_back(at::full({kNumel}, i + root, at::kFloat));
          works.push_back(late.broadcast(outputs.back(), root, tag));
        }
      }
      for (int i = 0; i < kCalls; ++i) {
        const int which = (i * 7 + rank * 13) % kCalls;
        works[which]->wait();
        expect_equal(outputs[which], expected[which], absl::StrCat("late ", which));
      }
    });
  }
}

}  // namespace tessera::internal::testing

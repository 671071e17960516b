#include <vector>

#include "tessera/tests/core/comm/groups/suite_tensors.h"

namespace tessera::internal::testing {

void test_messages(const GroupBackend& backend) {
  for_each_world(backend, [&](ProcessGroup& group) {
    const int size = group.size(), rank = group.rank();
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (const auto dtype : kAllDtypes) {
      for (const int64_t numel : sizes_of(backend)) {
        const at::Tensor sent = placed(group, input_of(rank, numel, dtype));
        at::Tensor received = placed(group, at::zeros({numel}, dtype));
        const auto works = group.batch_isend_irecv(
            {{Op::kSend, sent, next, "ring"}, {Op::kRecv, received, before, "ring"}});
        for (const auto& work : works) backend.wait(*work);
        EXPECT_EQ(works[1]->source(), before);
        expect_equal(received, input_of(before, numel, dtype), dtype_name(dtype));
      }
    }
    if (!backend.matches_by_tag || size == 1) return;
    // Every rank sends rank 0 a small and a large message; rank 0 receives the last tag first, and
    // from any source.
    const int64_t large = backend.largest;
    if (rank != 0) {
      std::vector<std::shared_ptr<Work>> works;
      works.push_back(group.isend(placed(group, at::full({1}, rank, at::kInt)), 0, "first"));
      works.push_back(group.isend(placed(group, at::full({large}, rank, at::kInt)), 0, "second"));
      for (const auto& work : works) work->wait();
      return;
    }
    std::vector<at::Tensor> seconds, firsts;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 1; i < size; ++i) {
      seconds.push_back(on_device(group, at::zeros({large}, at::kInt)));
      works.push_back(group.irecv(seconds.back(), i, "second"));
    }
    std::vector<bool> seen(size, false);
    for (int i = 1; i < size; ++i) {
      at::Tensor first = on_device(group, at::zeros({1}, at::kInt));
      const int from = group.recv(first, backend.has_any_source ? kAnySource : i, "first");
      EXPECT_EQ(first.cpu().item<int>(), from);
      EXPECT_FALSE(seen[from]);
      seen[from] = true;
    }
    for (int i = 1; i < size; ++i) {
      works[i - 1]->wait();
      expect_equal(seconds[i - 1], at::full({large}, i, at::kInt), "second");
    }
  });
}

/// Messages between two ranks do not affect the others' collectives, nor does an open receive delay
/// them.
void test_messages_beside_collectives(const GroupBackend& backend) {
  if (!backend.matches_by_tag) return;
  for_each_world(backend, [&](ProcessGroup& group) {
    if (group.size() < 2) return;
    const int64_t large = backend.largest;
    at::Tensor received = on_device(group, at::zeros({large}, at::kInt));
    std::shared_ptr<Work> open;
    if (group.rank() == 0) open = group.irecv(received, 1, "late");
    for (int i = 0; i < 3; ++i) {
      at::Tensor sum = on_device(group, at::ones({3}));
      backend.wait(*group.all_reduce(sum, ReduceOp::kSum, absl::StrCat(i)));
      expect_equal(sum, at::full({3}, 1.0f * group.size()), "sum");
    }
    // Rank 1 waits until its large message is received, while rank 0 is in the barrier.
    if (group.rank() == 1) group.send(on_device(group, at::full({large}, 7, at::kInt)), 0, "late");
    group.barrier("end");
    if (group.rank() != 0) return;
    open->wait();
    expect_equal(received, at::full({large}, 7, at::kInt), "late");
  });
}

}  // namespace tessera::internal::testing

#include "tessera/tests/core/comm/groups/group_suite.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/core/comm/groups/suite_tensors.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

constexpr ReduceOp kAllOps[] = {ReduceOp::kSum,   ReduceOp::kAvg,     ReduceOp::kMin,
                                ReduceOp::kMax,   ReduceOp::kProduct, ReduceOp::kBitAnd,
                                ReduceOp::kBitOr, ReduceOp::kBitXor};

bool is_bitwise(ReduceOp op) { return op >= ReduceOp::kBitAnd; }

/// The result of `op` for element i over all ranks' values.
double reduced_at(int size, int64_t i, at::ScalarType dtype, ReduceOp op) {
  int64_t sum = 0, product = 1, least = 99, most = 0, all = ~int64_t{0}, any = 0, odd = 0;
  for (int rank = 0; rank < size; ++rank) {
    const int64_t value = value_at(rank, i, dtype);
    sum += value;
    product *= value;
    least = std::min(least, value);
    most = std::max(most, value);
    all &= value;
    any |= value;
    odd ^= value;
  }
  switch (op) {
    case ReduceOp::kSum:
      return dtype == at::kBool ? static_cast<double>(any) : static_cast<double>(sum);
    case ReduceOp::kAvg:  // rounded as float or double division rounds
      return dtype == at::kDouble
                 ? static_cast<double>(sum) / size
                 : static_cast<double>(static_cast<float>(sum) / static_cast<float>(size));
    case ReduceOp::kMin:
      return static_cast<double>(least);
    case ReduceOp::kMax:
      return static_cast<double>(most);
    case ReduceOp::kProduct:
      return static_cast<double>(product);
    case ReduceOp::kBitAnd:
      return static_cast<double>(all);
    case ReduceOp::kBitOr:
      return static_cast<double>(any);
    case ReduceOp::kBitXor:
      return static_cast<double>(odd);
  }
  return 0;
}

bool can_reduce(const GroupBackend& backend, at::ScalarType dtype, ReduceOp op) {
  const bool is_half = dtype == at::kHalf || dtype == at::kBFloat16;
  if (op == ReduceOp::kAvg) {
    return at::isFloatingType(dtype) && (backend.rounds_once || !is_half);
  }
  if (is_bitwise(op)) return backend.has_bitwise && !at::isFloatingType(dtype);
  return dtype != at::kShort || backend.reduces_int16;
}

}  // namespace

void test_reductions(const GroupBackend& backend) {
  for_each_world(backend, [&](ProcessGroup& group) {
    const int size = group.size(), rank = group.rank();
    for (const auto dtype : kAllDtypes) {
      for (const ReduceOp op : kAllOps) {
        if (!can_reduce(backend, dtype, op)) continue;
        for (const int64_t numel : sizes_of(backend)) {
          const std::string what =
              absl::StrCat(dtype_name(dtype), " ", std::string(to_string(op)), " ", numel);
          const at::Tensor expected =
              filled(numel, dtype, [&](int64_t i) { return reduced_at(size, i, dtype, op); });
          at::Tensor all = placed(group, input_of(rank, numel, dtype));
          backend.wait(*group.all_reduce(all, op, "all"));
          expect_equal(all, expected, what);
          const int root = static_cast<int>(numel) % size;
          at::Tensor one = placed(group, input_of(rank, numel, dtype));
          backend.wait(*group.reduce(one, op, root, "one"));
          expect_equal(one, rank == root ? expected : input_of(rank, numel, dtype), what);
          // Makes slices begin with the same values as the whole.
          const int64_t part = numel / 6 * 6;
          const at::Tensor input = placed(group, input_of(rank, part * size, dtype));
          at::Tensor slice = placed(group, at::zeros({part}, dtype));
          backend.wait(*group.reduce_scatter(slice, input, op, "slice"));
          expect_equal(slice, expected.narrow(0, 0, part), what);
        }
      }
    }
  });
}

void test_moves(const GroupBackend& backend) {
  for_each_world(backend, [&](ProcessGroup& group) {
    const int size = group.size(), rank = group.rank();
    const auto of_pair = [&](int from, int to, int64_t numel, at::ScalarType dtype) {
      return filled(numel, dtype,
                    [&](int64_t i) { return value_of_pair(from, to, size, i, dtype); });
    };
    for (const auto dtype : kAllDtypes) {
      for (const int64_t numel : sizes_of(backend)) {
        const std::string what = absl::StrCat(dtype_name(dtype), " ", numel);
        for (int root = 0; root < size; ++root) {
          std::vector<at::Tensor> from, to;
          for (int other = 0; other < size; ++other) {
            from.push_back(of_pair(other, root, numel, dtype));
            to.push_back(of_pair(root, other, numel, dtype));
          }
          at::Tensor whole;
          if (rank == root) whole = placed(group, at::zeros({numel * size}, dtype));
          backend.wait(*group.gather(whole, placed(group, from[rank]), root, "g"));
          if (rank == root) expect_equal(whole, at::cat(from), what);
          if (rank == root) whole = placed(group, at::cat(to));
          at::Tensor part = placed(group, at::zeros({numel}, dtype));
          backend.wait(*group.scatter(part, whole, root, "s"));
          expect_equal(part, to[rank], what);
          if (rank == root) {  // in place
            backend.wait(*group.scatter(whole.narrow(0, rank * numel, numel), whole, root, "p"));
            backend.wait(*group.gather(whole, whole.narrow(0, rank * numel, numel), root, "q"));
            expect_equal(whole, at::cat(to), what);
          } else {
            backend.wait(*group.scatter(part, whole, root, "p"));
            backend.wait(*group.gather(whole, part, root, "q"));
          }
          at::Tensor sent = placed(group, rank == root ? to[0] : at::zeros({numel}, dtype));
          backend.wait(*group.broadcast(sent, root, "b"));
          expect_equal(sent, to[0], what);
        }
        std::vector<at::Tensor> given, expected, own;
        for (int other = 0; other < size; ++other) {
          given.push_back(of_pair(rank, other, numel, dtype));
          expected.push_back(of_pair(other, rank, numel, dtype));
          own.push_back(of_pair(other, 0, numel, dtype));
        }
        at::Tensor taken = placed(group, at::zeros({numel * size}, dtype));
        backend.wait(*group.all_to_all(taken, placed(group, at::cat(given)), "a"));
        expect_equal(taken, at::cat(expected), what);
        backend.wait(*group.all_gather(taken, placed(group, own[rank]), "w"));
        expect_equal(taken, at::cat(own), what);
        taken.zero_();
        taken.narrow(0, rank * numel, numel).copy_(own[rank]);
        backend.wait(*group.all_gather(taken, taken.narrow(0, rank * numel, numel), "i"));
        expect_equal(taken, at::cat(own), what);
      }
    }
  });
}

void test_uneven_all_to_all(const GroupBackend& backend) {
  for_each_world(backend, [&](ProcessGroup& group) {
    const int size = group.size(), rank = group.rank();
    for (const auto dtype : kAllDtypes) {
      for (const int64_t unit : {int64_t{1}, backend.largest / 3}) {
        // Some parts are empty, a rank's own too; each rank gets a different size from each rank.
        const auto of_pair = [&](int from, int to) {
          return filled((2 * from + 3 * to + 1) % 4 * unit, dtype,
                        [&](int64_t i) { return value_of_pair(from, to, size, i, dtype); });
        };
        std::vector<int64_t> in, out;
        std::vector<at::Tensor> given, expected;
        for (int other = 0; other < size; ++other) {
          given.push_back(of_pair(rank, other));
          expected.push_back(of_pair(other, rank));
          in.push_back(given.back().numel());
          out.push_back(expected.back().numel());
        }
        at::Tensor taken = placed(group, at::zeros({at::cat(expected).numel()}, dtype));
        backend.wait(*group.all_to_all(taken, placed(group, at::cat(given)), in, out, "u"));
        expect_equal(taken, at::cat(expected), absl::StrCat(dtype_name(dtype), " ", unit));
      }
    }
    // Empty calls: the ranks' counts must stay readable for others.
    const std::vector<int64_t> none(static_cast<size_t>(size), 0);
    for (int i = 0; i < 20; ++i) {
      const at::Tensor empty = on_device(group, at::zeros({0}));
      backend.wait(*group.all_to_all(empty, empty, none, none, "none"));
      at::Tensor ones = placed(group, at::ones({7}));
      backend.wait(*group.all_reduce(ones, ReduceOp::kSum, "ones"));
      expect_equal(ones, at::full({7}, static_cast<float>(size)), "after nothing");
    }
  });
  if (!backend.compares_counts || backend.world_sizes.back() < 2) return;
  const int size = backend.world_sizes.back();
  std::atomic<int> named{0};
  backend.run(size, [&](std::shared_ptr<ProcessGroup> group) {
    std::vector<int64_t> in(size, 2), out(size, 2);
    if (group->rank() == 1) in[0] = 3;
    const int64_t given = std::accumulate(in.begin(), in.end(), int64_t{0});
    at::Tensor taken = on_device(*group, at::zeros({2 * size}));
    const at::Tensor input = on_device(*group, at::zeros({given}));
    const std::string text =
        message_of([&] { group->all_to_all(taken, input, in, out, "odd")->wait(); });
    if (text.find("rank 1 gives rank 0 3 elements where rank 0 expects 2 from rank 1, in "
                  "all_to_all 'odd'") != std::string::npos) {
      ++named;
    }
  });
  EXPECT_EQ(named.load(), backend.in_one_process ? size : 1);
}

void test_coalesced_and_bytes(const GroupBackend& backend) {
  for_each_world(backend, [&](ProcessGroup& group) {
    const int size = group.size(), rank = group.rank();
    const auto filled_with = [&](at::IntArrayRef sizes, double value) {
      return on_device(group, at::full(sizes, value, at::kFloat));
    };
    std::vector<at::Tensor> tensors = {filled_with({3}, rank + 1.0),
                                       filled_with({2, 2}, 2.0 * rank), filled_with({0}, 0)};
    const std::vector<at::Tensor> inputs = {tensors[0].clone(), tensors[1].clone()};
    const auto work = group.all_reduce_coalesced(tensors, ReduceOp::kSum, "sum");
    work->wait();
    work->wait();  // a second wait() has no effect
    expect_equal(tensors[0], at::full({3}, size * (size + 1) / 2.0f), "sum");
    expect_equal(tensors[1], at::full({2, 2}, 1.0f * size * (size - 1)), "sum");
    const int root = size - 1;
    std::vector<at::Tensor> sent = {filled_with({3}, rank), filled_with({1}, 5.0 * rank)};
    group.broadcast_coalesced(sent, root)->wait();
    expect_equal(sent[0], at::full({3}, 1.0f * root), "broadcast");
    expect_equal(sent[1], at::full({1}, 5.0f * root), "broadcast");
    std::vector<at::Tensor> wholes = {filled_with({3 * size}, 0), filled_with({4 * size}, 0)};
    group.all_gather_coalesced(wholes, inputs)->wait();
    for (int other = 0; other < size; ++other) {
      expect_equal(wholes[0].narrow(0, 3 * other, 3), at::full({3}, other + 1.0f), "gather");
      expect_equal(wholes[1].narrow(0, 4 * other, 4), at::full({4}, 2.0f * other), "gather");
    }
    std::vector<at::Tensor> parts = {filled_with({3}, 0), filled_with({4}, 0)};
    group.reduce_scatter_coalesced(parts, wholes, ReduceOp::kSum)->wait();
    expect_equal(parts[0], at::full({3}, 1.0f * size * (rank + 1)), "scatter");
    expect_equal(parts[1], at::full({4}, 2.0f * size * rank), "scatter");

    const auto text_of = [](int of) {
      return std::string(static_cast<size_t>(of) * 1000, 'a' + of);
    };
    std::vector<std::string> all;
    for (int other = 0; other < size; ++other) all.push_back(text_of(other));
    std::string text = text_of(rank);
    group.broadcast_bytes(text, root, "bytes");
    EXPECT_EQ(text, text_of(root));
    EXPECT_EQ(group.all_gather_bytes(text_of(rank)), all);
    EXPECT_EQ(group.gather_bytes(text_of(rank), root),
              rank == root ? all : std::vector<std::string>());
    EXPECT_EQ(group.scatter_bytes(rank == 0 ? all : std::vector<std::string>(), 0), text_of(rank));
  });
}

void test_subgroups(const GroupBackend& backend) {
  for_each_world(backend, [&](ProcessGroup& world) {
    if (world.size() < 3) return;
    const int last = world.size() - 1;
    const auto group = world.subgroup({1, last}, "pair");
    if (group == nullptr) return;
    at::Tensor tensor = on_device(world, at::full({5}, world.rank() + 1.0f));
    backend.wait(*group->all_reduce(tensor, ReduceOp::kProduct, "p"));
    expect_equal(tensor, at::full({5}, 2.0f * (last + 1)), "product");
    if (group->rank() == 0) {
      group->send(tensor, 1, "m");
    } else {
      tensor.zero_();
      const auto work = group->irecv(tensor, 0, "m");
      backend.wait(*work);
      EXPECT_EQ(work->source(), 0);
      expect_equal(tensor, at::full({5}, 2.0f * (last + 1)), "message");
    }
    backend.wait(*group->broadcast(tensor, 1, "after"));
  });
}

void test_thousand_operations(const GroupBackend& backend) {
  constexpr int kOperations = 1000;
  for_each_world(backend, [&](ProcessGroup& group) {
    const int size = group.size(), rank = group.rank();
    std::vector<at::Tensor> tensors;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < kOperations; ++i) {
      tensors.push_back(on_device(group, at::full({i % 17}, i + rank, at::kLong)));
      works.push_back(group.all_reduce(tensors.back(), ReduceOp::kSum, "many"));
    }
    for (int i = kOperations - 1; i >= 0; --i) {
      backend.wait(*works[i]);
      expect_equal(tensors[i], at::full({i % 17}, i * size + size * (size - 1) / 2, at::kLong),
                   absl::StrCat(i));
    }
    // A ring of messages, received in the reverse order of their sends.
    works.clear();
    std::vector<Message> batch;
    std::vector<at::Tensor> sent, received;
    std::vector<std::string> tags;
    for (int i = 0; i < kOperations; ++i) tags.push_back(absl::StrCat("ring ", i));
    for (int i = 0; i < kOperations; ++i) {
      const int other = backend.matches_by_tag ? kOperations - 1 - i : i;
      sent.push_back(on_device(group, at::full({i % 17}, i * 10 + rank, at::kLong)));
      received.push_back(on_device(group, at::zeros({other % 17}, at::kLong)));
      batch.push_back({Op::kSend, sent.back(), (rank + 1) % size, tags[i]});
      batch.push_back({Op::kRecv, received.back(), (rank + size - 1) % size, tags[other]});
    }
    for (const auto& work : group.batch_isend_irecv(batch)) backend.wait(*work);
    for (int i = 0; i < kOperations; ++i) {
      const int other = backend.matches_by_tag ? kOperations - 1 - i : i;
      expect_equal(received[i],
                   at::full({other % 17}, other * 10 + (rank + size - 1) % size, at::kLong),
                   tags[i]);
    }
    group.barrier("received");  // messages are lost if their sender leaves
  });
}

void test_refusals(const GroupBackend& backend) {
  for_each_world(backend, [&](ProcessGroup& group) {
    const std::string lacking = absl::StrCat("': got a group of backend '",
                                             std::string(group.backend()), "', expected one that");
    const at::Tensor ints = on_device(group, at::ones({3}, at::kInt));
    const at::Tensor shorts = on_device(group, at::ones({3}, at::kShort));
    if (!backend.has_bitwise) {
      EXPECT_THAT(message_of([&] { group.all_reduce(ints, ReduceOp::kBitOr, "x"); }),
                  HasSubstr(absl::StrCat("all_reduce BOR 'x", lacking)));
    }
    if (!backend.reduces_int16) {
      EXPECT_THAT(message_of([&] { group.all_reduce(shorts, ReduceOp::kSum, "x"); }),
                  HasSubstr(absl::StrCat("all_reduce SUM of int16 'x", lacking)));
    }
    if (!backend.has_any_source) {
      EXPECT_THAT(message_of([&] { group.irecv(ints, kAnySource, "x"); }),
                  HasSubstr(absl::StrCat("recv from any rank 'x", lacking)));
    }
    at::Tensor sum = on_device(group, at::ones({2}));
    backend.wait(*group.all_reduce(sum, ReduceOp::kSum, "still usable"));
    expect_equal(sum, at::full({2}, 1.0f * group.size()), "still usable");
  });
}

}  // namespace tessera::internal::testing

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>

#include "tessera/process_group.h"

namespace tessera::internal::testing {

/// Calls that do not match, and the error on every rank.
struct CallDifference {
  const char* name;
  std::function<void(ProcessGroup&)> usual;
  std::function<void(ProcessGroup&)> other;  // what rank 1 does instead
  std::string text;
};

/// Differences for groups of `size` ranks, 3 or more.
inline std::vector<CallDifference> call_differences(int size) {
  using Call = std::function<void(ProcessGroup&)>;
  const auto reduce = [](int64_t numel, at::ScalarType dtype, ReduceOp op, const char* tag) {
    return
        [=](ProcessGroup& group) { group.all_reduce(at::zeros({numel}, dtype), op, tag)->wait(); };
  };
  const auto broadcast = [](int root) {
    return [=](ProcessGroup& group) { group.broadcast(at::zeros({3}), root, "b")->wait(); };
  };
  const auto reduce_to = [](int root) {
    return [=](ProcessGroup& group) {
      group.reduce(at::zeros({3}), ReduceOp::kSum, root, "r")->wait();
    };
  };
  // Ranks other than the root need only their own part.
  const auto gather = [](int root) {
    return [=](ProcessGroup& group) {
      group.gather(at::zeros({3 * group.size()}), at::zeros({3}), root, "g")->wait();
    };
  };
  const auto scatter = [](int root) {
    return [=](ProcessGroup& group) {
      group.scatter(at::zeros({3}), at::zeros({3 * group.size()}), root, "s")->wait();
    };
  };
  const auto coalesced = [](const std::vector<int64_t>& sizes) {
    return [=](ProcessGroup& group) {
      std::vector<at::Tensor> tensors;
      for (const int64_t numel : sizes) tensors.push_back(at::zeros({numel}));
      group.all_reduce_coalesced(tensors, ReduceOp::kSum, "c")->wait();
    };
  };
  const Call usual = reduce(1024, at::kFloat, ReduceOp::kSum, "bucket 3");
  return {
      {"op", usual, [](ProcessGroup& group) { group.barrier(); },
       "rank 1 called barrier '' where rank 0 called all_reduce SUM float32[1024] 'bucket 3'"},
      {"reduce op", usual, reduce(1024, at::kFloat, ReduceOp::kMax, "bucket 3"),
       "rank 1 called all_reduce MAX float32[1024] 'bucket 3' where rank 0 called all_reduce SUM"},
      {"dtype of equal size", usual, reduce(1024, at::kInt, ReduceOp::kSum, "bucket 3"),
       "rank 1 called all_reduce SUM int32[1024] 'bucket 3' where"},
      {"numel", usual, reduce(1023, at::kFloat, ReduceOp::kSum, "bucket 3"),
       "rank 1 called all_reduce SUM float32[1023] 'bucket 3' where"},
      {"tag", usual, reduce(1024, at::kFloat, ReduceOp::kSum, "bucket 4"),
       "rank 1 called all_reduce SUM float32[1024] 'bucket 4' where"},
      {"root", broadcast(0), broadcast(1),
       "rank 1 called broadcast float32[3] from rank 1 'b' where rank 0 called broadcast "
       "float32[3] from rank 0 'b'"},
      {"gather or scatter",
       [](ProcessGroup& group) {
         group.all_gather(at::zeros({group.size()}), at::zeros({1}))->wait();
       },
       [](ProcessGroup& group) {
         group.reduce_scatter(at::zeros({1}), at::zeros({group.size()}), ReduceOp::kMin)->wait();
       },
       absl::StrCat("rank 1 called reduce_scatter MIN float32[", size,
                    "] '' where rank 0 called all_gather float32[1]")},
      {"product", usual, reduce(1024, at::kFloat, ReduceOp::kProduct, "bucket 3"),
       "rank 1 called all_reduce PRODUCT float32[1024] 'bucket 3' where rank 0 called all_reduce "
       "SUM"},
      {"bits", reduce(8, at::kInt, ReduceOp::kBitOr, "flags"),
       reduce(8, at::kInt, ReduceOp::kBitAnd, "flags"),
       "rank 1 called all_reduce BAND int32[8] 'flags' where rank 0 called all_reduce BOR"},
      {"root of a reduction", reduce_to(0), reduce_to(1),
       "rank 1 called reduce SUM float32[3] to rank 1 'r' where rank 0 called reduce SUM "
       "float32[3] "
       "to rank 0 'r'"},
      {"root of a gather", gather(0), gather(1),
       "rank 1 called gather float32[3] to rank 1 'g' where rank 0 called gather float32[3] to "
       "rank "
       "0 'g'"},
      {"root of a scatter", scatter(0), scatter(1),
       "rank 1 called scatter float32[3] from rank 1 's' where rank 0 called scatter float32[3] "
       "from "
       "rank 0 's'"},
      {"coalesced sizes", coalesced({3, 4}), coalesced({3, 5}), "rank 1 called all_reduce"},
      {"coalesced order", coalesced({3, 4}), coalesced({4, 3}), "rank 1 called all_reduce"},
      {"subgroup ranks",
       [](ProcessGroup& group) {
         group.subgroup({0, 1}, "part");
       },
       [](ProcessGroup& group) {
         group.subgroup({0, 2}, "part");
       },
       "rank 1 called subgroup 'part [0, 2]' where rank 0 called subgroup 'part [0, 1]'"},
      {"skipped",
       [](ProcessGroup& group) {
         group.barrier("first");
         group.barrier("second");
       },
       [](ProcessGroup& group) { group.barrier("second"); },
       "rank 1 called barrier 'second' where rank 0 called barrier 'first'"},
  };
}

}  // namespace tessera::internal::testing

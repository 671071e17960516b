#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/process_group.h"
#include "tessera/tests/support/forwarding_group.h"

namespace tessera::testing {

/// A deliberate break of a reduction.
enum class Break : uint8_t {
  kNone,
  kDropBucket,   ///< rank 0 does not receive what was reduced for one bucket or unit
  kSkipAverage,  ///< sums where a mean was asked for
  kShiftSlice,   ///< results lie one element off, as if padding were counted wrongly
  kDropPublish,  ///< the last rank does not receive the others' new parameters of "bucket 0"
  kDropGather,   ///< the last rank finds zeros where it gathers one unit from other ranks
  kShiftGather,  ///< what it gathers of that unit lies one element off
};

/// Passes everything on to another group and breaks one thing, without any error: what the suites'
/// comparisons must notice by themselves.
class BrokenGroup final : public ForwardingGroup {
 public:
  BrokenGroup(std::shared_ptr<ProcessGroup> inner, Break what)
      : ForwardingGroup(std::move(inner)), break_(what) {}

  std::shared_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op,
                                   std::string_view tag = {}) override;
  std::shared_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       ReduceOp op, std::string_view tag = {},
                                       int slice = kOwnRank) override;
  std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   std::string_view tag = {}) override;
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override;
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;

 private:
  bool is_last() const { return rank() == size() - 1; }
  ReduceOp broken(ReduceOp op) const;
  void damage(const at::Tensor& result, const at::Tensor& before, std::string_view tag) const;

  Break break_;
};

}  // namespace tessera::testing

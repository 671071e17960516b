#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/process_group.h"

namespace tessera::internal::testing {

/// A deliberate break of a reduction.
enum class Break : uint8_t {
  kNone,
  kDropBucket,   ///< rank 0 does not receive what was reduced for one bucket or unit
  kSkipAverage,  ///< sums where a mean was asked for
  kShiftSlice,   ///< results lie one element off, as if padding were counted wrongly
  kDropUpdates,  ///< the last rank does not receive the others' new parameters of "bucket 0"
  kDropGather,   ///< the last rank finds zeros where it gathers one unit from other ranks
  kShiftGather,  ///< what it gathers of that unit lies one element off
};

/// Passes everything on to another group and breaks one thing, without any error: what the suites'
/// comparisons must notice by themselves.
class BrokenGroup final : public ForwardingGroup {
 public:
  BrokenGroup(std::shared_ptr<ProcessGroup> inner, Break what)
      : ForwardingGroup(std::move(inner)), break_(what) {}

  std::shared_ptr<Work> run(const Collective& collective) override;
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override;

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::make_shared<BrokenGroup>(std::move(inner), break_);
  }

 private:
  bool is_last() const { return rank() == size() - 1; }
  void damage(const Collective& collective, const at::Tensor& before) const;

  Break break_;
};

}  // namespace tessera::internal::testing

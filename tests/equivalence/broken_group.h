#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/process_group.h"

namespace tessera::internal::testing {

/// Deliberate errors in a collective.
enum class Break : uint8_t {
  kNone,
  kDropBucket,   ///< rank 0 does not receive the reduced values of one bucket or unit
  kSkipAverage,  ///< returns sums where a mean was requested
  kShiftSlice,   ///< results are shifted by one element, as after a wrong padding size
  kDropUpdates,  ///< the last rank does not receive the others' new parameters of "bucket 0"
  kDropGather,   ///< the last rank finds zeros where it gathers one unit from other ranks
  kShiftGather,  ///< the gathered values of that unit are shifted by one element
};

/// Forwards everything to another group, with one silent error that the suites' comparisons must
/// find.
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

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/process_group.h"

namespace prove {

/// A silent mistake that a sharding engine could make.
enum class Control : uint8_t {
  kNone,           ///< the world is not wrapped
  kPassOn,         ///< the world is wrapped but makes no mistake: the control of the controls
  kSkipReduction,  ///< the gradients of one bucket or unit are not reduced
  kSwapReduction,  ///< ranks 0 and 1 receive each other's slice of the gradients
  kSwapUpdates,    ///< the new parameters of ranks 0 and 1 are gathered in the wrong order
  kStaleGather,    ///< a unit is gathered with the values before the last update
};

/// Switched off while the results are read: only training must be wrong.
struct ControlSwitch {
  Control control = Control::kNone;
  bool is_on = true;
};

/// A world that makes one mistake in every step. No call fails: only a comparison can notice it.
class ControlGroup final : public tessera::internal::ForwardingGroup {
 public:
  ControlGroup(std::shared_ptr<tessera::ProcessGroup> inner, std::shared_ptr<ControlSwitch> what)
      : ForwardingGroup(std::move(inner)), what_(std::move(what)) {}

  std::shared_ptr<tessera::Work> run(const tessera::Collective& collective) override;
  std::unique_ptr<tessera::Window> make_window(const at::Tensor& own,
                                               std::string_view name) override;

 protected:
  std::shared_ptr<tessera::ProcessGroup> wrap(
      std::shared_ptr<tessera::ProcessGroup> inner) override {
    return std::make_shared<ControlGroup>(std::move(inner), what_);
  }

 private:
  bool makes(Control control) const { return what_->is_on && what_->control == control; }
  std::shared_ptr<tessera::Work> swap_reduction(const tessera::Collective& collective);
  std::shared_ptr<tessera::Work> swap_updates(const tessera::Collective& collective);

  const std::shared_ptr<ControlSwitch> what_;
};

/// "none", "pass_on", "skip_reduction", "swap_reduction", "swap_updates" or "stale_gather"; throws
/// c10::Error.
Control parse_control(std::string_view text);

}  // namespace prove

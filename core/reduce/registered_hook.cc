#include "tessera/core/reduce/registered_hook.h"

#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/ScopeExit.h>

namespace tessera::internal {

void RegisteredHook::try_out(CommHook& hook, const ParameterTable& table, const UnitPlan& plan,
                             bool has_loss_scale) {
  CommHook::Setting setting;
  setting.has_loss_scale = has_loss_scale;
  for (size_t unit = 0; unit < plan.trainable_size(); ++unit) {
    std::vector<CommHook::Trained>& bucket = setting.buckets.emplace_back();
    for (const size_t index : plan[unit].parameters) {
      bucket.push_back(
          {table[index].name, table[index].tensor.detach(), plan[unit].precision.communication});
    }
  }
  hook.prepare(setting);
}

at::Tensor RegisteredHook::run(const GradBucket& bucket, ProcessGroup& group) const {
  is_running_ = true;
  const auto end = c10::make_scope_exit([this] { is_running_ = false; });
  return hook_->run(bucket, group);
}

void RegisteredHook::accept(std::shared_ptr<CommHook> hook, MemoryMeter& meter) {
  hook_ = std::move(hook);
  count(meter);
}

void RegisteredHook::prepare(const ParameterTable& table, const UnitPlan& plan, bool has_loss_scale,
                             MemoryMeter& meter) {
  if (hook_ == nullptr) return;
  try_out(*hook_, table, plan, has_loss_scale);
  count(meter);
}

void RegisteredHook::count(MemoryMeter& meter) {
  meter.remove(MemoryClass::kGradients, counted_bytes_);
  counted_bytes_ = hook_->bytes();
  meter.add(MemoryClass::kGradients, counted_bytes_);
}

std::vector<CommHook::State> RegisteredHook::state() const {
  if (hook_ == nullptr) return {};
  std::vector<CommHook::State> state = hook_->state();
  for (CommHook::State& tensor : state) {
    tensor.name = absl::StrCat("comm_hook.", hook_->name(), ".", tensor.name);
  }
  return state;
}

}  // namespace tessera::internal

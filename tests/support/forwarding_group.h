#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "tessera/core/comm/process_group.h"

namespace tessera::testing {

/// The part that groups wrapped around another group have in common: who they are is who the inner
/// one is. Wrappers add their collectives.
class ForwardingGroup : public ProcessGroup {
 public:
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view name() const override { return inner_->name(); }
  std::string_view backend() const override { return inner_->backend(); }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return inner_->allocate(numel, dtype);
  }
  void abort(std::string_view cause) noexcept override { inner_->abort(cause); }

 protected:
  explicit ForwardingGroup(std::shared_ptr<ProcessGroup> inner) : inner_(std::move(inner)) {}

  const std::shared_ptr<ProcessGroup> inner_;
};

}  // namespace tessera::testing

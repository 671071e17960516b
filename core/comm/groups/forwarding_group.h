#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/process_group.h"

namespace tessera::internal {

/// Decorator: forwards every call to inner_ unless a derived class overrides it. A derived class's
/// run() gets every collective and every message.
class ForwardingGroup : public ProcessGroup {
 public:
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view name() const override { return inner_->name(); }
  std::string_view backend() const override { return inner_->backend(); }
  Capabilities can() const override { return inner_->can(); }
  at::Device device() const override { return inner_->device(); }
  std::shared_ptr<Work> run(const Collective& collective) override {
    return inner_->run(collective);
  }
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override {
    return inner_->make_window(own, name);
  }
  std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes, std::string_view name) override {
    return inner_->make_shared_buffer(bytes, name);
  }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return inner_->allocate(numel, dtype);
  }
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override {
    auto made = inner_->subgroup(ranks, name);
    return made == nullptr ? nullptr : wrap(std::move(made));
  }
  void abort(std::string_view cause) noexcept override { inner_->abort(cause); }

 protected:
  explicit ForwardingGroup(std::shared_ptr<ProcessGroup> inner) : inner_(std::move(inner)) {}

  /// Wraps a subgroup of inner_; by default returns it as it is.
  virtual std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) { return inner; }

  const std::shared_ptr<ProcessGroup> inner_;
};

}  // namespace tessera::internal

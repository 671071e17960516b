#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "tessera/core/comm/process_group.h"

namespace tessera::testing {

/// A window that does something before each read of another window.
class WatchedWindow final : public Window {
 public:
  using Before = std::function<void(int rank, const at::Tensor& to, std::string_view tag)>;

  WatchedWindow(std::unique_ptr<Window> inner, Before before)
      : inner_(std::move(inner)), before_(std::move(before)) {}

  void read(int rank, int64_t begin, const at::Tensor& to, std::string_view tag = {}) override {
    before_(rank, to, tag);
    inner_->read(rank, begin, to, tag);
  }

 private:
  const std::unique_ptr<Window> inner_;
  const Before before_;
};

/// The part that groups wrapped around another group have in common: who they are is who the inner
/// one is. Wrappers add their collectives.
class ForwardingGroup : public ProcessGroup {
 public:
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view name() const override { return inner_->name(); }
  std::string_view backend() const override { return inner_->backend(); }
  bool runs_in_background() const override { return inner_->runs_in_background(); }
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override {
    return inner_->make_window(own, name);
  }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return inner_->allocate(numel, dtype);
  }
  void abort(std::string_view cause) noexcept override { inner_->abort(cause); }

 protected:
  explicit ForwardingGroup(std::shared_ptr<ProcessGroup> inner) : inner_(std::move(inner)) {}

  const std::shared_ptr<ProcessGroup> inner_;
};

}  // namespace tessera::testing

#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/process_group.h"

namespace tessera::internal::testing {

/// A window that does something before each read of another window.
class WatchedWindow final : public Window {
 public:
  using Before = std::function<void(int rank, const at::Tensor& to, std::string_view tag)>;

  WatchedWindow(std::unique_ptr<Window> inner, Before before)
      : inner_(std::move(inner)), before_(std::move(before)) {}

  std::shared_ptr<Work> start_read(int rank, int64_t begin, const at::Tensor& to,
                                   std::string_view tag, int64_t version) override {
    before_(rank, to, tag);
    return inner_->start_read(rank, begin, to, tag, version);
  }
  int64_t load(int rank, int64_t index) const override { return inner_->load(rank, index); }
  void store(int64_t index, int64_t value) override { inner_->store(index, value); }

 private:
  const std::unique_ptr<Window> inner_;
  const Before before_;
};

/// The part that groups wrapped around another group have in common: who they are and what they do
/// is what the inner one is and does, and their subgroups are wrapped as they are. Wrappers
/// override what they change; run() sees every collective.
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

  /// A subgroup, changed as this group is.
  virtual std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) = 0;

  const std::shared_ptr<ProcessGroup> inner_;
};

}  // namespace tessera::internal::testing

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
  int64_t load(int rank, int64_t index) const override { return inner_->load(rank, index); }
  void store(int64_t index, int64_t value) override { inner_->store(index, value); }

 private:
  const std::unique_ptr<Window> inner_;
  const Before before_;
};

/// The part that groups wrapped around another group have in common: who they are and what they do
/// is what the inner one is and does. Wrappers override what they change, and subgroup(), because
/// subgroups are to be wrapped as well.
class ForwardingGroup : public ProcessGroup {
 public:
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view name() const override { return inner_->name(); }
  std::string_view backend() const override { return inner_->backend(); }
  bool runs_in_background() const override { return inner_->runs_in_background(); }
  at::Device place() const override { return inner_->place(); }
  bool has_windows() const override { return inner_->has_windows(); }
  std::shared_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op,
                                   std::string_view tag = {}) override {
    return inner_->all_reduce(tensor, op, tag);
  }
  std::shared_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       ReduceOp op, std::string_view tag = {},
                                       int slice = kOwnRank) override {
    return inner_->reduce_scatter(output, input, op, tag, slice);
  }
  std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   std::string_view tag = {}) override {
    return inner_->all_gather(output, input, tag);
  }
  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root,
                                  std::string_view tag = {}) override {
    return inner_->broadcast(tensor, root, tag);
  }
  void barrier(std::string_view tag = {}) override { inner_->barrier(tag); }
  /// On the host it is all_gather(), which wrappers see.
  void all_gather_on_host(const at::Tensor& output, const at::Tensor& input,
                          std::string_view tag = {}) override {
    if (place().is_cpu()) {
      ProcessGroup::all_gather_on_host(output, input, tag);
    } else {
      inner_->all_gather_on_host(output, input, tag);
    }
  }
  std::shared_ptr<Work> start_gather_on_host(const at::Tensor& output, const at::Tensor& input,
                                             std::string_view tag = {}) override {
    return place().is_cpu() ? ProcessGroup::start_gather_on_host(output, input, tag)
                            : inner_->start_gather_on_host(output, input, tag);
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
  void abort(std::string_view cause) noexcept override { inner_->abort(cause); }

 protected:
  explicit ForwardingGroup(std::shared_ptr<ProcessGroup> inner) : inner_(std::move(inner)) {}

  const std::shared_ptr<ProcessGroup> inner_;
};

}  // namespace tessera::testing

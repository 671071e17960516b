#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "tessera/process_group.h"

namespace tessera::internal {

/// A group as it is, that counts the bytes of the tensors which this rank gives to its collectives.
/// Subgroups are not counted.
class CountedGroup final : public ProcessGroup {
 public:
  /// `group` must outlive it.
  explicit CountedGroup(ProcessGroup& group) : group_(group) {}

  int64_t bytes() const { return bytes_; }

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::string_view name() const override { return group_.name(); }
  std::string_view backend() const override { return group_.backend(); }
  Capabilities can() const override { return group_.can(); }
  at::Device device() const override { return group_.device(); }
  std::shared_ptr<Work> run(const Collective& collective) override {
    if (collective.input.defined()) bytes_ += static_cast<int64_t>(collective.input.nbytes());
    return group_.run(collective);
  }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return group_.allocate(numel, dtype);
  }
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override {
    return group_.make_window(own, name);
  }
  std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes, std::string_view name) override {
    return group_.make_shared_buffer(bytes, name);
  }
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override {
    return group_.subgroup(ranks, name);
  }
  void abort(std::string_view cause) noexcept override { group_.abort(cause); }

 private:
  ProcessGroup& group_;
  int64_t bytes_ = 0;
};

}  // namespace tessera::internal

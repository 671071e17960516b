#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/hosts/world.h"
#include "tessera/process_group.h"

namespace tessera::internal::hosts {

/// Ranks that have one level, as a part of a world that has two: a group of one host's shared
/// memory, or of what connects hosts. It fails by itself, and its abort() reaches all groups.
class PartGroup final : public ProcessGroup {
 public:
  PartGroup(std::shared_ptr<World> world, std::shared_ptr<ProcessGroup> inner, std::string name);
  ~PartGroup() override;

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view name() const override { return name_; }
  std::string_view backend() const override { return inner_->backend(); }
  Capabilities can() const override { return inner_->can(); }

  std::shared_ptr<Work> run(const Collective& collective) override {
    return inner_->run(collective);
  }
  std::vector<std::shared_ptr<Work>> run_batch(const std::vector<Collective>& messages) override {
    return inner_->run_batch(messages);
  }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return inner_->allocate(numel, dtype);
  }
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override {
    return inner_->make_window(own, name);
  }
  std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes, std::string_view name) override {
    return inner_->make_shared_buffer(bytes, name);
  }
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;
  void abort(std::string_view cause) noexcept override { world_->fail(cause); }

 private:
  const int uncaught_at_start_;
  const std::shared_ptr<World> world_;
  const std::shared_ptr<ProcessGroup> inner_;
  const std::string name_;
};

}  // namespace tessera::internal::hosts

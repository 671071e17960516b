#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "tessera/core/comm/groups/absences.h"
#include "tessera/process_group.h"
#include "tessera/work.h"

namespace tessera::internal::hosts {

/// Of the ranks that this rank shares memory with, for as long as it has not left them.
using HostAbsences = std::weak_ptr<Absences>;

/// Of a group of this host's ranks; nobody's where it has none.
HostAbsences absences_of(ProcessGroup& inside);

/// What other hosts take part in: who waits for it is absent. Note [Absent ranks].
class OuterWork final : public Work {
 public:
  OuterWork(std::shared_ptr<Work> inner, HostAbsences absences);

  bool is_completed() override { return inner_->is_completed(); }
  void wait() override;
  int source() const override { return inner_->source(); }

 private:
  const std::shared_ptr<Work> inner_;
  const HostAbsences absences_;
};

/// A group of ranks of several hosts: another one, while whose calls block this rank is absent, and
/// that of its windows and subgroups, too.
class OuterGroup final : public ProcessGroup {
 public:
  OuterGroup(std::shared_ptr<ProcessGroup> inner, HostAbsences absences);

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view name() const override { return inner_->name(); }
  std::string_view backend() const override { return inner_->backend(); }
  Capabilities can() const override { return inner_->can(); }

  std::shared_ptr<Work> run(const Collective& collective) override;
  std::vector<std::shared_ptr<Work>> run_batch(const std::vector<Collective>& messages) override;
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return inner_->allocate(numel, dtype);
  }
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override;
  std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes, std::string_view name) override {
    return inner_->make_shared_buffer(bytes, name);
  }
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;
  void abort(std::string_view cause) noexcept override { inner_->abort(cause); }

 private:
  std::shared_ptr<Work> wrap(std::shared_ptr<Work> work) const;

  const std::shared_ptr<ProcessGroup> inner_;
  const HostAbsences absences_;
};

}  // namespace tessera::internal::hosts

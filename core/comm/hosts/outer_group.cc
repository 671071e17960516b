#include "tessera/core/comm/hosts/outer_group.h"

#include <utility>

#include "tessera/errors.h"

namespace tessera::internal::hosts {
namespace {

/// Runs `body`, which may wait for other hosts. If it fails the rank stays absent: those who wait
/// for it shall find the cause, not that it has come back without anything.
template <typename Body>
auto while_absent(const WeakHostRanks& host_ranks, Body&& body) {
  class Absence {
   public:
    explicit Absence(std::shared_ptr<HostRanks> of) : of_(std::move(of)) {
      if (of_ != nullptr) of_->begin_absence();
    }
    ~Absence() {
      if (of_ != nullptr) of_->end_absence();
    }
    Absence(const Absence&) = delete;
    Absence& operator=(const Absence&) = delete;
    void keep() { of_ = nullptr; }

   private:
    std::shared_ptr<HostRanks> of_;
  };
  Absence absence(host_ranks.lock());
  try {
    return body();
  } catch (const CommError&) {
    absence.keep();
    throw;
  }
}

class OuterWindow final : public tessera::Window {
 public:
  OuterWindow(std::unique_ptr<tessera::Window> inner, WeakHostRanks host_ranks)
      : inner_(std::move(inner)), host_ranks_(std::move(host_ranks)) {}

  std::shared_ptr<Work> start_read(int rank, int64_t begin, const at::Tensor& to,
                                   std::string_view tag, int64_t version) override {
    return std::make_shared<OuterWork>(inner_->start_read(rank, begin, to, tag, version),
                                       host_ranks_);
  }
  int64_t load(int rank, int64_t index) const override {
    return while_absent(host_ranks_, [&] { return inner_->load(rank, index); });
  }
  void store(int64_t index, int64_t value) override { inner_->store(index, value); }

 private:
  const std::unique_ptr<tessera::Window> inner_;
  const WeakHostRanks host_ranks_;
};

}  // namespace

WeakHostRanks host_ranks_of(ProcessGroup& inside) {
  auto* const shares = dynamic_cast<HasHostRanks*>(&inside);
  return shares == nullptr ? nullptr : shares->host_ranks();
}

OuterWork::OuterWork(std::shared_ptr<Work> inner, WeakHostRanks host_ranks)
    : inner_(std::move(inner)), host_ranks_(std::move(host_ranks)) {}

void OuterWork::wait() {
  while_absent(host_ranks_, [this] { inner_->wait(); });
}

bool OuterWork::wait_for(std::chrono::milliseconds longest) {
  return while_absent(host_ranks_, [&] { return inner_->wait_for(longest); });
}

OuterGroup::OuterGroup(std::shared_ptr<ProcessGroup> inner, WeakHostRanks host_ranks)
    : ForwardingGroup(std::move(inner)), host_ranks_(std::move(host_ranks)) {}

std::shared_ptr<Work> OuterGroup::as_outer(std::shared_ptr<Work> work) const {
  return std::make_shared<OuterWork>(std::move(work), host_ranks_);
}

std::shared_ptr<Work> OuterGroup::run(const Collective& collective) {
  return as_outer(while_absent(host_ranks_, [&] { return inner_->run(collective); }));
}

std::vector<std::shared_ptr<Work>> OuterGroup::run_batch(const std::vector<Collective>& messages) {
  auto works = inner_->run_batch(messages);
  for (auto& work : works) work = as_outer(std::move(work));
  return works;
}

std::unique_ptr<tessera::Window> OuterGroup::make_window(const at::Tensor& own,
                                                         std::string_view name) {
  auto window = while_absent(host_ranks_, [&] { return inner_->make_window(own, name); });
  return std::make_unique<OuterWindow>(std::move(window), host_ranks_);
}

std::shared_ptr<ProcessGroup> OuterGroup::subgroup(const std::vector<int>& ranks,
                                                   std::string_view name) {
  return while_absent(host_ranks_, [&] { return ForwardingGroup::subgroup(ranks, name); });
}

std::shared_ptr<ProcessGroup> OuterGroup::wrap(std::shared_ptr<ProcessGroup> inner) {
  return std::make_shared<OuterGroup>(std::move(inner), host_ranks_);
}

}  // namespace tessera::internal::hosts

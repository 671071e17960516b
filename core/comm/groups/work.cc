#include "tessera/work.h"

#include <mutex>
#include <thread>
#include <utility>

#include "tessera/core/comm/groups/continued_work.h"
#include "tessera/time_out.h"

namespace tessera {
namespace {

class CompletedWork final : public Work {
 public:
  bool is_completed() override { return true; }
  void wait() override {}
};

class ContinuedWork final : public Work {
 public:
  ContinuedWork(std::shared_ptr<Work> inner, std::function<std::shared_ptr<Work>()> then)
      : inner_(std::move(inner)), then_(std::move(then)) {}

  bool is_completed() override { return inner_->is_completed(); }

  void wait() override {
    inner_->wait();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (begun_ == nullptr) {
      begun_ = then_();
      then_ = nullptr;
    }
    begun_->wait();
  }

  int source() const override { return inner_->source(); }

 private:
  const std::shared_ptr<Work> inner_;
  std::mutex mutex_;
  std::function<std::shared_ptr<Work>()> then_;
  std::shared_ptr<Work> begun_;
};

constexpr auto kBetweenLooks = std::chrono::microseconds(50);

}  // namespace

bool Work::wait_for(std::chrono::milliseconds longest) {
  const auto end = std::chrono::steady_clock::now() + bounded(longest);
  while (!is_completed()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return true;
}

std::shared_ptr<Work> completed_work() {
  // Stateless, so one object serves everyone and the inline path allocates nothing. Never
  // destroyed: Note [End of the process].
  static const auto* const work = new std::shared_ptr<Work>(std::make_shared<CompletedWork>());
  return *work;
}

std::shared_ptr<Work> internal::continued(std::shared_ptr<Work> inner,
                                          std::function<std::shared_ptr<Work>()> then) {
  return std::make_shared<ContinuedWork>(std::move(inner), std::move(then));
}

}  // namespace tessera

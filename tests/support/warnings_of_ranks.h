#pragma once

#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/Exception.h>

namespace tessera::internal::testing {

/// Collects the warnings of the threads that have it as handler.
class WarningsOfRanks final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    texts_.push_back(warning.msg());
  }
  std::vector<std::string> texts() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return texts_;
  }
  /// Blocks until there is a warning.
  void await() {
    while (texts().empty()) std::this_thread::yield();
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

}  // namespace tessera::internal::testing

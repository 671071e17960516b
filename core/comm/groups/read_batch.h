#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/work.h"

namespace tessera::internal {

/// Reads of windows that are under way together. Whatever is thrown in between, it waits for all of
/// them, for they write to memory of the caller.
class ReadBatch {
 public:
  ~ReadBatch() {
    try {
      wait();
    } catch (...) {  // what made the caller leave says more
    }
  }

  /// What Window::start_read() has returned.
  void add(std::shared_ptr<Work> read) { reads_.push_back(std::move(read)); }

  /// Blocks until all have ended; then throws what the first one that failed has thrown.
  void wait() {
    std::exception_ptr first;
    const auto reads = std::exchange(reads_, {});
    // Other ranks of the host may wait for any of them, with patience once this rank does, too.
    for (const auto& read : reads) read->wait_for(std::chrono::milliseconds(0));
    for (const auto& read : reads) {
      try {
        read->wait();
      } catch (...) {
        if (first == nullptr) first = std::current_exception();
      }
    }
    if (first != nullptr) std::rethrow_exception(first);
  }

 private:
  std::vector<std::shared_ptr<Work>> reads_;
};

}  // namespace tessera::internal

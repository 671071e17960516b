#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/work.h"

namespace tessera::internal {

/// Concurrent window reads. The destructor waits for them, because they write to the caller's
/// memory.
class ReadBatch {
 public:
  ~ReadBatch() {
    try {
      wait();
    } catch (...) {  // not rethrown: the error that unwinds the stack says more
    }
  }

  /// Adds what Window::start_read() returned.
  void add(std::shared_ptr<Work> read) { reads_.push_back(std::move(read)); }

  /// Blocks until all reads have ended, then rethrows the error of the first read, in the order of
  /// add(), that failed.
  void wait() {
    std::exception_ptr first;
    const auto reads = std::exchange(reads_, {});
    // First tells every read that this rank waits for it. Other ranks may need parts that this rank
    // fetches. They wait longer for a part if they see that this rank waits for it, too
    // (hosts::ReadCache).
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

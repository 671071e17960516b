#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tessera/work.h"

namespace tessera::internal {

/// Reads of windows that are under way together. Whatever is thrown in between, it waits for all of
/// them, for they write to memory of the caller.
class ReadBatch {
 public:
  ReadBatch() = default;
  ReadBatch(const ReadBatch&) = delete;
  ReadBatch& operator=(const ReadBatch&) = delete;
  ~ReadBatch();

  /// What Window::start_read() has returned.
  void add(std::shared_ptr<Work> read) { reads_.push_back(std::move(read)); }

  /// Blocks until all have ended; then throws what the first one that failed has thrown.
  void wait();

 private:
  std::vector<std::shared_ptr<Work>> reads_;
};

}  // namespace tessera::internal

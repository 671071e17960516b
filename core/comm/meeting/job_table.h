#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/core/comm/meeting/shared_table.h"

namespace tessera::internal {

/// A SharedTable in this process's memory. Its size is bounded: it refuses texts when it is full.
class JobTable : public SharedTable {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 30;

  /// Makes a table whose keys and texts have at most `most_bytes` bytes together.
  explicit JobTable(size_t most_bytes = kMaxBytes) : most_bytes_(most_bytes) {}

  /// Overridden for speed: rank 0 calls this in a loop, and the base class would copy all keys into
  /// a request each time.
  bool has(const std::vector<std::string>& keys) override;
  Message reply(const Message& request) override;

 private:
  bool put(const std::string& key, const std::string& text);
  void remove(const std::string& key);

  const size_t most_bytes_;
  std::mutex mutex_;
  std::map<std::string, std::string> texts_;
  size_t bytes_ = 0;
};

}  // namespace tessera::internal

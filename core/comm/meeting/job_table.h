#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/core/comm/meeting/shared_table.h"

namespace tessera::internal {

/// The table in memory. Bounded: a full one refuses texts.
class JobTable : public SharedTable {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 30;

  /// For keys and texts of so many bytes together.
  explicit JobTable(size_t most_bytes = kMaxBytes) : most_bytes_(most_bytes) {}

  /// Rank 0 looks again and again: no copy of the keys.
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

#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/comm/meeting/message.h"
#include "tessera/core/comm/meeting/shared_table.h"

namespace tessera::internal {

/// Requests of a rank to the job's table: Message::kind of a request.
enum class RequestKind : uint8_t {
  kSet = 1,       ///< key, text
  kSetFirst = 2,  ///< key, text
  kGet = 3,       ///< key
  kHas = 4,       ///< keys
  kErase = 5,     ///< key
};

/// Message::kind of a reply.
enum class ReplyKind : uint8_t {
  kNo = 0,     ///< there is no such key; not all of these keys
  kYes = 1,    ///< done; the text, if there is one
  kWrong = 2,  ///< no such request: a text that says why
};

/// The table in memory. Bounded: a full one refuses texts.
class JobTable : public SharedTable {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 30;

  /// For keys and texts of so many bytes together.
  explicit JobTable(size_t most_bytes = kMaxBytes) : most_bytes_(most_bytes) {}

  void set(const std::string& key, const std::string& text) override;
  std::string set_first(const std::string& key, const std::string& text) override;
  std::optional<std::string> get(const std::string& key) override;
  bool has(const std::vector<std::string>& keys) override;
  void erase(const std::string& key) override;

  /// The reply to any message.
  Message reply(const Message& request);

 private:
  void put(const std::string& key, const std::string& text);

  const size_t most_bytes_;
  std::mutex mutex_;
  std::map<std::string, std::string> texts_;
  size_t bytes_ = 0;
};

}  // namespace tessera::internal

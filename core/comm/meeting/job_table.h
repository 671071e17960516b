#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "tessera/core/comm/meeting/message.h"

namespace tessera::internal {

/// Requests of a rank to the job's table: Message::kind of a request.
enum class RequestKind : uint8_t {
  kSet = 1,         ///< key, value
  kGet = 2,         ///< key
  kCompareSet = 3,  ///< key, expected, desired: as c10d's stores do
  kAdd = 4,         ///< key, a decimal number
  kDelete = 5,      ///< key
  kCheck = 6,       ///< keys
  kCount = 7,
  kBorrow = 8,  ///< key of a descriptor
  kOnLoss = 9,  ///< key, value: to be set, unless the key is there, once the sender is gone
};

/// Message::kind of a reply.
enum class ReplyKind : uint8_t {
  kNo = 0,     ///< there is no such key; not all of these keys
  kYes = 1,    ///< done; the value, if there is one
  kWrong = 2,  ///< no such request: a text that says why
};

/// The key-value table of a job: texts under keys, and descriptors to lend. Bounded: a full table
/// refuses requests. Thread-safe; nothing blocks.
class JobTable {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 30;

  /// For keys and values of so many bytes together.
  explicit JobTable(size_t most_bytes = kMaxBytes) : most_bytes_(most_bytes) {}

  /// The reply to any request. kBorrow and kOnLoss are not handled by the table: kWrong.
  Message reply(const Message& request);

  void set_unless_there(const std::string& key, const std::string& value);

  /// A descriptor that others may borrow as long as its owner keeps it open.
  void lend(const std::string& key, int fd);
  std::optional<int> lent(const std::string& key) const;

 private:
  Message set(const std::string& key, std::string value);
  Message compare_set(const std::string& key, const std::string& expected,
                      const std::string& desired);
  Message add(const std::string& key, const std::string& number);
  bool fits(const std::string& key, const std::string& value) const;

  const size_t most_bytes_;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int> lent_;
  size_t bytes_ = 0;
};

}  // namespace tessera::internal

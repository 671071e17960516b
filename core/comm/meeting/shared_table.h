#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/comm/meeting/message.h"

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
  kNo = 0,     ///< there is no such key, or not all of the keys are there
  kYes = 1,    ///< done; with the text, if the request asks for one
  kWrong = 2,  ///< unknown request, or no room; with a text that says why
};

/// Texts under keys that all ranks of a job read and write. No call waits for a rank to do
/// something. All calls throw std::runtime_error if the table cannot be reached or is full.
/// Thread-safe.
class SharedTable {
 public:
  virtual ~SharedTable() = default;

  virtual void set(const std::string& key, const std::string& text);
  /// Sets the text unless the key exists already. Returns the text that the key has then.
  virtual std::string set_first(const std::string& key, const std::string& text);
  virtual std::optional<std::string> get(const std::string& key);
  /// Returns true if all `keys` exist.
  virtual bool has(const std::vector<std::string>& keys);
  virtual void erase(const std::string& key);

  /// Returns the table's reply to any message.
  virtual Message reply(const Message& request) = 0;

 private:
  Message ask(RequestKind kind, std::vector<std::string> fields);
};

}  // namespace tessera::internal

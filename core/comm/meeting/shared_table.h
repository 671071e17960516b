#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/comm/meeting/message.h"

namespace tessera::internal {

/// The kinds of requests that a rank sends to the table of its job (values of Message::kind), with
/// the texts that each carries.
enum class RequestKind : uint8_t {
  kSet = 1,       ///< key, text
  kSetFirst = 2,  ///< key, text
  kGet = 3,       ///< key
  kHas = 4,       ///< keys
  kErase = 5,     ///< key
};

/// The kinds of replies of the table (values of Message::kind).
enum class ReplyKind : uint8_t {
  kNo = 0,     ///< there is no such key, or not all of the keys are there
  kYes = 1,    ///< done; with the text that the key has, if the request asks for it
  kWrong = 2,  ///< unknown request, or no room; with a text that says why
};

/// Texts under keys, which all ranks of a job read and write. A call never waits for another rank
/// to set something. All calls throw std::runtime_error if the table cannot be reached, and those
/// that set a text also if the table is full. Thread-safe.
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

  /// Returns the table's reply to `request`; a kWrong if that is not a valid request.
  virtual Message reply(const Message& request) = 0;

 private:
  Message ask(RequestKind kind, std::vector<std::string> fields);
};

}  // namespace tessera::internal

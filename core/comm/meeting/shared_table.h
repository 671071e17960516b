#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tessera::internal {

/// Texts under keys that all ranks of a job read and write. No call waits for a rank to do
/// something. All throw std::runtime_error if the
/// table cannot be reached or takes no more. Thread-safe.
class SharedTable {
 public:
  virtual ~SharedTable() = default;

  virtual void set(const std::string& key, const std::string& text) = 0;
  /// Sets it unless it is there. Returns what is there then.
  virtual std::string set_first(const std::string& key, const std::string& text) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;
  /// Whether all of them are there.
  virtual bool has(const std::vector<std::string>& keys) = 0;
  virtual void erase(const std::string& key) = 0;
};

}  // namespace tessera::internal

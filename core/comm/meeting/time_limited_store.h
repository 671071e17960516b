#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/core/process/fork.h"

namespace tessera::internal {

/// Wraps a user's store, which may block forever: one thread of this object makes every call, and
/// the caller waits for at most getTimeout(). A call that takes longer throws c10::DistStoreError,
/// and so do all later ones, at once; the thread and the store are abandoned. Exceptions of the
/// store become c10::DistStoreError that names its type. Thread-safe, except setTimeout().
class TimeLimitedStore final : public c10d::Store {
 public:
  /// Local. Throws c10::Error where no thread can be started.
  explicit TimeLimitedStore(c10::intrusive_ptr<c10d::Store> store);
  /// Waits up to a second for the thread to release the store.
  ~TimeLimitedStore() override;

  using c10d::Store::compareSet;
  using c10d::Store::set;
  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  struct Worker;

  /// Says that the store failed, and with what.
  [[noreturn]] void fail(const std::exception_ptr& error) const;
  /// Returns when the thread has run `body`; fails if that threw.
  void run(std::function<void(c10d::Store&)> body);
  template <typename T>
  T result_of(std::function<T(c10d::Store&)> body);

  const Origin origin_;
  const std::string kind_;  // of store, for messages
  std::shared_ptr<Worker> worker_;
};

}  // namespace tessera::internal

#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}  // namespace c10d

namespace tessera::internal::nccl {

/// What the ranks of a world exchange through the store: the one cause of a failure, and after a
/// time-out which rank has called what. Nothing here waits for a peer; if the store is slow or
/// gone, its exceptions pass through.
class Agreement {
 public:
  Agreement(c10::intrusive_ptr<c10d::Store> store, int rank);
  ~Agreement();

  /// Publishes `cause`, unless a rank has published one before. Returns the first one.
  std::string publish(const std::string& cause);
  std::optional<std::string> failure();

  /// A rank waits for collective `sequence` of a group and asks all ranks about it. Only the first
  /// inquiry counts.
  struct Inquiry {
    int asker = -1;
    int64_t sequence = -1;
    std::string group;
  };
  Inquiry ask(const std::string& group, int64_t sequence);
  std::optional<Inquiry> inquiry();
  void answer(const std::string& report);
  /// A rank's answer, or the report that it wrote when it left the group; its thread may have
  /// ended.
  std::optional<std::string> answer_of(int rank, const std::string& group);
  void say_left(const std::string& group, const std::string& report);

  /// Texts under keys.
  void put(const std::string& key, const std::string& text);
  bool has(const std::vector<std::string>& keys);
  std::string get(const std::string& key);
  void erase(const std::string& key);

 private:
  std::optional<std::string> look(const std::string& key);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
};

}  // namespace tessera::internal::nccl

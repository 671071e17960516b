#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/comm/meeting/shared_table.h"

namespace tessera::internal::nccl {

/// What the ranks of a world exchange through their table: the one cause of a failure, and after a
/// time-out which rank has called what. Nothing here waits for a peer; if the table is slow or
/// gone, its exceptions pass through.
class Agreement {
 public:
  Agreement(std::shared_ptr<SharedTable> table, int rank);

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

  SharedTable& table() { return *table_; }

 private:
  const std::shared_ptr<SharedTable> table_;
  const int rank_;
};

}  // namespace tessera::internal::nccl

#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/process_group.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/support/patience.h"

namespace tessera::internal::testing {

/// A rank's body. The group is this rank's own world; the rank leaves it when the body returns.
using RankBody = std::function<void(std::shared_ptr<ProcessGroup>)>;

struct RankThreadOptions {
  /// "auto": loopback for one rank, else shm.
  std::string backend = "auto";
  /// Time-out of the groups' collectives.
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
  std::chrono::milliseconds report_after = ProcessGroupOptions().report_after;
  ProcessGroupOptions::Lane lane = ProcessGroupOptions::Lane::kInline;
  /// Makes the world of a rank; null: init_process_group() does.
  std::function<std::shared_ptr<ProcessGroup>(int rank)> make_world = nullptr;
  /// Overrides thread i's rank and world size; by default i and the number of threads.
  std::function<int(int thread)> rank_of = nullptr;
  std::function<int(int thread)> world_size_of = nullptr;
  /// After this time the state of each rank is printed and the test binary aborts.
  std::chrono::milliseconds deadline = kPatience;
};

/// Runs `body` on `size` threads, each a rank of one world inside this process, with one ATen
/// thread each. Returns when all have finished. If any rank threw, throws std::runtime_error with
/// every rank's message, first those that are not consequences of another rank's failure.
void run_ranks(int size, const RankBody& body, const RankThreadOptions& options = {});

/// As run_ranks(), but returns what() of each rank's exception, or "".
std::vector<std::string> run_ranks_expecting_errors(int size, const RankBody& body,
                                                    const RankThreadOptions& options = {});

}  // namespace tessera::internal::testing

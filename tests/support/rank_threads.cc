#include "tessera/tests/support/rank_threads.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <ATen/Parallel.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/core/comm/rendezvous/rank_threads.h"
#include "tessera/core/process/error_text.h"

namespace tessera::internal::testing {
namespace {

struct RankState {
  const char* phase = "starting";
  std::string error;
};

/// Shared by the ranks and the thread that waits for them.
struct Run {
  std::mutex mutex;
  std::vector<RankState> ranks;

  void enter(int rank, const char* phase, std::string error = "") {
    const std::lock_guard lock(mutex);
    ranks[rank] = {phase, std::move(error)};
  }
};

void run_one(Run& run, int rank, ProcessGroupOptions options, const RankThreadOptions& how,
             const RankBody& body) {
  try {
    at::set_num_threads(1);
    run.enter(rank, "in init_process_group");
    auto group = how.make_world ? how.make_world(rank) : init_process_group(std::move(options));
    run.enter(rank, "in its body");
    body(std::move(group));
    run.enter(rank, "finished");
  } catch (...) {
    run.enter(rank, "finished", present_error_text());
  }
}

[[noreturn]] void give_up(Run& run, std::chrono::milliseconds deadline) {
  const std::lock_guard lock(run.mutex);
  std::fprintf(stderr, "[test] ranks did not finish within %lld ms:\n",
               static_cast<long long>(deadline.count()));
  for (size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const RankState& state = run.ranks[rank];
    std::fprintf(stderr, "  rank %zu: %s%s%s\n", rank, state.phase, state.error.empty() ? "" : ": ",
                 state.error.c_str());
  }
  std::fflush(stderr);
  std::abort();
}

}  // namespace

std::vector<std::string> run_ranks_expecting_errors(int size, const RankBody& body,
                                                    const RankThreadOptions& options) {
  Run run;
  run.ranks.resize(size);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  RankThreads threads(size, [&](int rank) {
    ProcessGroupOptions group_options;
    group_options.rank = options.rank_of ? options.rank_of(rank) : rank;
    group_options.world_size = options.world_size_of ? options.world_size_of(rank) : size;
    group_options.store = store;
    group_options.timeout = options.timeout;
    group_options.report_after = options.report_after;
    group_options.backend = options.backend;
    group_options.lane = options.lane;
    run_one(run, rank, std::move(group_options), options, body);
  });
  if (!threads.wait_for(options.deadline)) give_up(run, options.deadline);
  std::vector<std::string> errors;
  for (const RankState& rank : run.ranks) errors.push_back(rank.error);
  return errors;
}

void run_ranks(int size, const RankBody& body, const RankThreadOptions& options) {
  const auto errors = run_ranks_expecting_errors(size, body, options);
  std::string own;
  std::string consequences;
  for (int rank = 0; rank < size; ++rank) {
    if (errors[rank].empty()) continue;
    std::string& text = absl::StartsWith(errors[rank], "[comm] ") ? consequences : own;
    absl::StrAppend(&text, "rank ", rank, ": ", errors[rank], "\n");
  }
  if (!own.empty() || !consequences.empty()) throw std::runtime_error(own + consequences);
}

}  // namespace tessera::internal::testing

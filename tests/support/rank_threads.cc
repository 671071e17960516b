#include "tessera/tests/support/rank_threads.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace tessera::internal::testing {
namespace {

struct RankState {
  const char* phase = "starting";
  bool finished = false;
  std::string error;
};

/// Shared by the ranks and the watching thread.
struct Run {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<RankState> ranks;
  int finished = 0;

  void enter(int rank, const char* phase) {
    std::lock_guard<std::mutex> lock(mutex);
    ranks[rank].phase = phase;
  }

  void finish(int rank, std::string error) {
    std::lock_guard<std::mutex> lock(mutex);
    ranks[rank].phase = "finished";
    ranks[rank].finished = true;
    ranks[rank].error = std::move(error);
    ++finished;
    changed.notify_all();
  }
};

void run_one(Run& run, int rank, ProcessGroupOptions options, const RankThreadOptions& how,
             const RankBody& body) {
  std::string error;
  try {
    at::set_num_threads(1);
    run.enter(rank, "in init_process_group");
    auto group = how.make_world ? how.make_world(rank) : init_process_group(std::move(options));
    run.enter(rank, "in its body");
    body(std::move(group));
  } catch (const c10::Error& exception) {
    error = exception.what_without_backtrace();
  } catch (const std::exception& exception) {
    error = exception.what();
  } catch (...) {
    error = "an exception that is no std::exception";
  }
  run.finish(rank, std::move(error));
}

[[noreturn]] void give_up(const Run& run, std::chrono::milliseconds deadline) {
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
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(size));  // grows nowhere while a rank forks
  for (int rank = 0; rank < size; ++rank) {
    ProcessGroupOptions group_options;
    group_options.rank = options.rank_of ? options.rank_of(rank) : rank;
    group_options.world_size = options.world_size_of ? options.world_size_of(rank) : size;
    group_options.store = store;
    group_options.timeout = options.timeout;
    group_options.report_after = options.report_after;
    group_options.backend = options.backend;
    group_options.lane = options.lane;
    threads.emplace_back([&run, rank, &options, &body, group_options = std::move(group_options)] {
      run_one(run, rank, group_options, options, body);
    });
  }
  {
    std::unique_lock<std::mutex> lock(run.mutex);
    const bool in_time =
        run.changed.wait_for(lock, options.deadline, [&] { return run.finished == size; });
    if (!in_time) give_up(run, options.deadline);
  }
  std::vector<std::string> errors;
  for (int rank = 0; rank < size; ++rank) {
    threads[rank].join();
    errors.push_back(run.ranks[rank].error);
  }
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

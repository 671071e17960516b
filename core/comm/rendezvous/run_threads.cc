#include "tessera/run_threads.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/core/comm/rendezvous/core_share.h"
#include "tessera/core/comm/rendezvous/rank_threads.h"
#include "tessera/core/process/available_cores.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/launchers.h"
#include "tessera/environment.h"
#include "tessera/errors.h"
#include "tessera/rendezvous.h"

namespace tessera {
using namespace internal;

namespace {

constexpr int kMostThreads = 4096;

void check_run_threads(int n, const ProcessGroupOptions& options) {
  TORCH_CHECK(n >= 1 && n <= kMostThreads, "[run_threads] n: got ", n, ", expected 1 to ",
              kMostThreads, " ranks; correct it");
  const bool has_place =
      options.rank || options.world_size || options.store != nullptr || !options.store_url.empty();
  TORCH_CHECK(!has_place,
              "[run_threads] options: got rank, world_size, store or store_url, expected none, as "
              "threads have their own; leave them out");
  TORCH_CHECK(!options.device.has_index(), "[run_threads] options: got device '",
              options.device.str(), "', expected no index, as rank r has GPU r; leave it out");
  // Refuse MPI here, before a world is made, because MPI sets variables of a rank in this process's
  // environment and leaves them there.
  const std::string backend = options.backend != "auto"
                                  ? options.backend
                                  : process_environment("TESSERA_BACKEND").value_or("auto");
  TORCH_CHECK(backend != "mpi" && backend != "hosts", "[run_threads] options: got backend '",
              backend,
              "' (ProcessGroupOptions::backend, TESSERA_BACKEND), expected another one, "
              "as ranks of MPI are processes; leave it out");
  const auto job = read_own_rank();
  TORCH_CHECK(job.ok(), std::string(job.status().message()));
  TORCH_CHECK(
      job->world_size == 1, "[run_threads] got a call in rank ", job->rank, " of ", job->world_size,
      ", expected a program that is one process, as these threads would be ranks of a world "
      "beside that of the job; start one process, or one rank for each device");
}

/// Returns true if the error may be only a consequence of another rank's failure.
bool is_consequence(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

[[noreturn]] void throw_rank_error(const RankThreads::Failure& failure, int n) {
  try {
    std::rethrow_exception(failure.error);
  } catch (...) {
    throw RankError(
        {.rank = failure.rank, .exit_code = present_error_exit_code(), .exception = failure.error},
        absl::StrCat("[run_threads] rank ", failure.rank, " of ", n, ": ", present_error_text()));
  }
}

}  // namespace

void run_threads(int n, const std::function<void(std::shared_ptr<ProcessGroup>)>& body,
                 ProcessGroupOptions options) {
  check_run_threads(n, options);
  const auto put_back =
      c10::make_scope_exit([threads = at::get_num_threads()] { at::set_num_threads(threads); });
  options.store = c10::make_intrusive<c10d::HashStore>();
  options.world_size = n;
  RankThreads ranks(n, [&](int rank) {
    share_cores(available_cores(), n);
    ProcessGroupOptions own = options;
    own.rank = rank;
    if (own.device.is_cuda()) own.device = at::Device(at::kCUDA, static_cast<int8_t>(rank));
    body(init_process_group(std::move(own)));
  });
  const std::vector<RankThreads::Failure> failures = ranks.wait();
  if (failures.empty()) return;
  const auto first = std::find_if_not(failures.begin(), failures.end(),
                                      [](const auto& one) { return is_consequence(one.error); });
  throw_rank_error(first != failures.end() ? *first : failures.front(), n);
}

}  // namespace tessera

#pragma once

#include <string>
#include <vector>

namespace tessera::internal {

/// The place of one worker in a job on one host.
struct WorkerPlace {
  int rank = 0;
  int world_size = 1;
  /// Number of cores that the job may use, shared evenly among the ranks.
  int core_count = 1;
  /// Value of TESSERA_STORE: "file://" and an absolute path.
  std::string store;
  /// Value of TESSERA_JOB_PAGE.
  std::string job_page;
  /// Value of TORCHELASTIC_RUN_ID, the same for the whole job.
  std::string run_id;
  /// Value of TESSERA_JOB_TOKEN, unless the user has set one; a secret.
  std::string job_token;
  /// The cores on which the job may run. With a container's CPU quota there are more of them than
  /// core_count.
  std::vector<int> cores = {};
  /// Number of this start of the job, from 0, and the largest number of restarts.
  int restart_count = 0;
  int max_restarts = 0;
  /// Value of TORCHELASTIC_ERROR_FILE.
  std::string error_file = {};
};

/// Returns the value for OMP_NUM_THREADS if the user has set none: max(1, cores / ranks).
int threads_per_worker(int core_count, int world_size);

/// Returns the launcher's message on the number of threads that it gives each worker; "" if the
/// user has set the number.
std::string threads_remark(const std::vector<std::string>& inherited, int core_count,
                           int world_size);

/// Returns the value of `name` in `inherited` ("NAME=value" strings); "" if it is not there.
std::string value_of(const std::vector<std::string>& inherited, const std::string& name);

/// Returns why no job may start here; "" if one may. No job may start if `inherited` has RANK and a
/// WORLD_SIZE other than 1, because then each of several processes would start a job of its own.
std::string outer_job_problem(const std::vector<std::string>& inherited);

/// Returns the worker's environment as "NAME=value" strings: `inherited` with the variables that
/// torchrun gives its workers, TESSERA_STORE, TESSERA_JOB_PAGE and the changes of thread_binding().
/// Sets TESSERA_JOB_TOKEN only if it is missing or empty, and OMP_NUM_THREADS only if it holds no
/// number of threads. Removes an empty GOMP_CPU_AFFINITY, with which libgomp would bind to core 0.
/// Removes MASTER_ADDR and MASTER_PORT, because the job meets at a socket in a directory and opens
/// no port, and an address left over from another job would mislead.
std::vector<std::string> worker_environment(const std::vector<std::string>& inherited,
                                            const WorkerPlace& place);

/// Returns the environment of a command that starts ranks itself: `inherited` with the number of
/// this start, and TESSERA_JOB_PAGE, in which the command's rank 0 reports its progress.
std::vector<std::string> supervised_environment(const std::vector<std::string>& inherited,
                                                const WorkerPlace& place);

}  // namespace tessera::internal

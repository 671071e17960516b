#pragma once

#include <string>
#include <vector>

namespace tessera::internal {

/// Where one worker stands in a job on one host.
struct WorkerPlace {
  int rank = 0;
  int world_size = 1;
  /// How many cores the job may use, shared evenly among the ranks.
  int core_count = 1;
  /// Value of TESSERA_STORE: "file://" and an absolute path.
  std::string store;
  /// Value of TESSERA_JOB_PAGE.
  std::string job_page;
  /// Value of TORCHELASTIC_RUN_ID; the job's.
  std::string run_id;
  /// Value of TESSERA_JOB_TOKEN, unless the user has set one; a secret.
  std::string job_token;
  /// Which cores the job may run on: more than it may use where a container has a quota.
  std::vector<int> cores = {};
  /// Which start of the job this is, from 0, and how many restarts there may be.
  int restart_count = 0;
  int max_restarts = 0;
  /// Value of TORCHELASTIC_ERROR_FILE.
  std::string error_file = {};
};

/// Value that OMP_NUM_THREADS gets when the user has set none: max(1, cores / ranks).
int threads_per_worker(int core_count, int world_size);

/// The launcher's line on the threads that it gives each worker; "" if the user has set their
/// number.
std::string threads_remark(const std::vector<std::string>& inherited, int core_count,
                           int world_size);

/// What `inherited` ("NAME=value" strings) has for `name`; "" if it is not there.
std::string value_of(const std::vector<std::string>& inherited, const std::string& name);

/// Why no job may start here: `inherited` has RANK and a WORLD_SIZE that is not 1, so that this
/// process is one of several, each of which would start a job of its own. "" if one may.
std::string outer_job_problem(const std::vector<std::string>& inherited);

/// The worker's environment as "NAME=value" strings: `inherited` with the variables that torchrun
/// gives its workers, plus TESSERA_STORE and TESSERA_JOB_PAGE, and what thread_binding() changes.
/// OMP_NUM_THREADS and TESSERA_JOB_TOKEN are set only if they are not there, or empty, or the
/// former is no number. An empty GOMP_CPU_AFFINITY, by which libgomp binds to core 0, is taken out.
/// MASTER_ADDR and MASTER_PORT are not set, and inherited ones are taken out: the job meets at a
/// socket in a directory, no port is open, and an address left over from another job would be a
/// trap.
std::vector<std::string> worker_environment(const std::vector<std::string>& inherited,
                                            const WorkerPlace& place);

/// That of a command which starts ranks itself: `inherited` with which start this is, and
/// TESSERA_JOB_PAGE, where its rank 0 says how far it has come.
std::vector<std::string> supervised_environment(const std::vector<std::string>& inherited,
                                                const WorkerPlace& place);

}  // namespace tessera::internal

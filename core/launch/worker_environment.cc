#include "tessera/core/launch/worker_environment.h"

#include <algorithm>
#include <map>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/launch/thread_binding.h"

namespace tessera::internal {
namespace {

std::string name_of(const std::string& entry) { return entry.substr(0, entry.find('=')); }

/// Whether OpenMP takes it: "4", or "4,2" for nested regions, of which the first number counts
/// here.
bool is_thread_count(const std::string& value) {
  int count = 0;
  return absl::SimpleAtoi(value.substr(0, value.find(',')), &count) && count > 0;
}

}  // namespace

int threads_per_worker(int core_count, int world_size) {
  return std::max(1, core_count / world_size);
}

std::string threads_remark(const std::vector<std::string>& inherited, int core_count,
                           int world_size) {
  const std::string value = value_of(inherited, "OMP_NUM_THREADS");
  if (is_thread_count(value)) return "";
  const auto count_of = [](int count, const char* noun) {
    return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
  };
  return absl::StrCat(
      "OMP_NUM_THREADS is ",
      value.empty() ? "not set" : absl::StrCat("'", value, "', no number of threads"), "; giving ",
      count_of(world_size, "worker"), " ",
      count_of(threads_per_worker(core_count, world_size), "thread"), " each on ",
      count_of(core_count, "core"));
}

std::string value_of(const std::vector<std::string>& inherited, const std::string& name) {
  for (const std::string& entry : inherited) {
    if (name_of(entry) == name && entry.size() > name.size()) return entry.substr(name.size() + 1);
  }
  return "";
}

std::string outer_job_problem(const std::vector<std::string>& inherited) {
  const std::string nodes = value_of(inherited, "PET_NNODES");  // as torchrun takes it: "2", "1:4"
  if (!nodes.empty() && nodes != "1" && nodes != "1:1") {
    return absl::StrCat(
        "PET_NNODES: got '", nodes,
        "', expected 1 or none: tessera-run starts ranks on one host, and each of these nodes "
        "would train alone; start the program by mpirun or srun, or, if it is left over from "
        "another job: env -u PET_NNODES tessera-run ...");
  }
  const std::string rank = value_of(inherited, "RANK");
  const std::string world_size = value_of(inherited, "WORLD_SIZE");
  if (rank.empty() || world_size.empty() || world_size == "1") return "";
  return absl::StrCat(
      "RANK, WORLD_SIZE: got '", rank, "' and '", world_size,
      "', expected no variables of another launcher: each of its processes would start a job of "
      "its own; start the program itself here, or, if they are left over from another job: env -u "
      "RANK -u WORLD_SIZE tessera-run ...");
}

std::vector<std::string> worker_environment(const std::vector<std::string>& inherited,
                                            const WorkerPlace& place) {
  const std::string rank = absl::StrCat(place.rank);
  const std::string world_size = absl::StrCat(place.world_size);
  std::map<std::string, std::string> ours =
      thread_binding(inherited, place.rank, place.world_size, place.cores).variables;
  ours.insert({
      {"RANK", rank},
      {"WORLD_SIZE", world_size},
      {"LOCAL_RANK", rank},
      {"LOCAL_WORLD_SIZE", world_size},
      {"GROUP_RANK", "0"},
      {"GROUP_WORLD_SIZE", "1"},
      {"ROLE_NAME", "default"},
      {"ROLE_RANK", rank},
      {"ROLE_WORLD_SIZE", world_size},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"TORCHELASTIC_RUN_ID", place.run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TESSERA_STORE", place.store},
      {"TESSERA_JOB_PAGE", place.job_page},
  });
  if (!is_thread_count(value_of(inherited, "OMP_NUM_THREADS"))) {
    ours["OMP_NUM_THREADS"] = absl::StrCat(threads_per_worker(place.core_count, place.world_size));
  }
  if (value_of(inherited, "TESSERA_JOB_TOKEN").empty()) ours["TESSERA_JOB_TOKEN"] = place.job_token;
  std::vector<std::string> environment;
  for (const std::string& entry : inherited) {
    const std::string name = name_of(entry);
    // An error file or an address of an outer launcher is not this job's.
    if (name == "MASTER_ADDR" || name == "MASTER_PORT" || name == "TORCHELASTIC_ERROR_FILE" ||
        entry == "GOMP_CPU_AFFINITY=") {
      continue;
    }
    if (ours.count(name) == 0) environment.push_back(entry);
  }
  for (const auto& [name, value] : ours) environment.push_back(absl::StrCat(name, "=", value));
  return environment;
}

}  // namespace tessera::internal

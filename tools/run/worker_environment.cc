#include "tessera/tools/run/worker_environment.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"

namespace tessera::internal {
namespace {

std::string name_of(const std::string& entry) { return entry.substr(0, entry.find('=')); }

}  // namespace

int threads_per_worker(int core_count, int world_size) {
  return std::max(1, core_count / world_size);
}

bool is_set(const std::vector<std::string>& inherited, const std::string& name) {
  return std::any_of(inherited.begin(), inherited.end(),
                     [&](const std::string& entry) { return name_of(entry) == name; });
}

std::string outer_job_problem(const std::vector<std::string>& inherited) {
  std::map<std::string, std::string> outer = {{"RANK", ""}, {"WORLD_SIZE", ""}, {"PET_NNODES", ""}};
  for (const std::string& entry : inherited) {
    const auto found = outer.find(name_of(entry));
    if (found != outer.end()) found->second = entry.substr(found->first.size() + 1);
  }
  const std::string nodes = outer["PET_NNODES"];  // as torchrun takes it: "2", "1:4"
  if (!nodes.empty() && nodes != "1" && nodes != "1:1") {
    return absl::StrCat(
        "PET_NNODES: got '", nodes,
        "', expected 1 or none: tessera-run starts ranks on one host, and each of these nodes "
        "would train alone; start the program by mpirun or srun, or, if it is left over from "
        "another job: env -u PET_NNODES tessera-run ...");
  }
  if (outer["RANK"].empty() || outer["WORLD_SIZE"].empty() || outer["WORLD_SIZE"] == "1") return "";
  return absl::StrCat(
      "RANK, WORLD_SIZE: got '", outer["RANK"], "' and '", outer["WORLD_SIZE"],
      "', expected no variables of another launcher: each of its processes would start a job of "
      "its own; start the program itself here, or, if they are left over from another job: env -u "
      "RANK -u WORLD_SIZE tessera-run ...");
}

std::vector<std::string> worker_environment(const std::vector<std::string>& inherited,
                                            const WorkerPlace& place) {
  const std::string rank = absl::StrCat(place.rank);
  const std::string world_size = absl::StrCat(place.world_size);
  std::map<std::string, std::string> ours = {
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
  };
  if (!is_set(inherited, "OMP_NUM_THREADS")) {
    ours["OMP_NUM_THREADS"] = absl::StrCat(threads_per_worker(place.core_count, place.world_size));
  }
  if (!is_set(inherited, "TESSERA_JOB_TOKEN")) ours["TESSERA_JOB_TOKEN"] = place.job_token;
  std::vector<std::string> environment;
  for (const std::string& entry : inherited) {
    const std::string name = name_of(entry);
    // An error file or an address of an outer launcher is not this job's.
    if (name == "MASTER_ADDR" || name == "MASTER_PORT" || name == "TORCHELASTIC_ERROR_FILE") {
      continue;
    }
    if (ours.count(name) == 0) environment.push_back(entry);
  }
  for (const auto& [name, value] : ours) environment.push_back(absl::StrCat(name, "=", value));
  return environment;
}

}  // namespace tessera::internal

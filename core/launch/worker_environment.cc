#include "tessera/core/launch/worker_environment.h"

#include <algorithm>
#include <map>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/launch/thread_binding.h"

namespace tessera::internal {
namespace {

std::string name_of(const std::string& entry) { return entry.substr(0, entry.find('=')); }

/// Returns true if OpenMP accepts `value` as a number of threads ("4"), or as a list of numbers for
/// nested regions ("4,2"), of which only the first number is checked.
bool is_thread_count(const std::string& value) {
  int count = 0;
  return absl::SimpleAtoi(value.substr(0, value.find(',')), &count) && count > 0;
}

/// Returns the variables that tell a process how often the job was restarted, how often it may be
/// restarted, and where the job's page is.
std::map<std::string, std::string> attempt_variables(const WorkerPlace& place) {
  const std::string count = absl::StrCat(place.restart_count);
  return {{"TORCHELASTIC_RESTART_COUNT", count},
          {"TORCHELASTIC_MAX_RESTARTS", absl::StrCat(place.max_restarts)},
          {"TESSERA_RESTART_COUNT", count},
          {"TESSERA_JOB_PAGE", place.job_page}};
}

/// Returns `inherited` without the `unwanted` entries, and with `ours` replacing variables of the
/// same names.
std::vector<std::string> changed(const std::vector<std::string>& inherited,
                                 const std::map<std::string, std::string>& ours,
                                 bool (*unwanted)(const std::string& entry)) {
  std::vector<std::string> environment;
  for (const std::string& entry : inherited) {
    if (!unwanted(entry) && ours.count(name_of(entry)) == 0) environment.push_back(entry);
  }
  for (const auto& [name, value] : ours) environment.push_back(absl::StrCat(name, "=", value));
  return environment;
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
      {"TORCHELASTIC_RUN_ID", place.run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCHELASTIC_ERROR_FILE", place.error_file},
      {"TESSERA_STORE", place.store},
  });
  ours.merge(attempt_variables(place));
  if (!is_thread_count(value_of(inherited, "OMP_NUM_THREADS"))) {
    ours["OMP_NUM_THREADS"] = absl::StrCat(threads_per_worker(place.core_count, place.world_size));
  }
  if (value_of(inherited, "TESSERA_JOB_TOKEN").empty()) ours["TESSERA_JOB_TOKEN"] = place.job_token;
  return changed(inherited, ours, [](const std::string& entry) {
    const std::string name = name_of(entry);
    // Drops the address of an outer launcher, which does not belong to this job, and an empty
    // GOMP_CPU_AFFINITY, with which libgomp would bind to core 0.
    return name == "MASTER_ADDR" || name == "MASTER_PORT" || entry == "GOMP_CPU_AFFINITY=";
  });
}

std::vector<std::string> supervised_environment(const std::vector<std::string>& inherited,
                                                const WorkerPlace& place) {
  return changed(inherited, attempt_variables(place), [](const std::string&) { return false; });
}

}  // namespace tessera::internal

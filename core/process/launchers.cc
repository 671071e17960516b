#include "tessera/core/process/launchers.h"

#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

namespace tessera::internal {
namespace {

/// A launcher, and the variables by which it gives a process its rank.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size = nullptr;  ///< null: the launcher sets only `rank`
  const char* local_rank = nullptr;
  const char* local_size = nullptr;
  bool may_lack_local = false;  ///< local_rank and local_size may both be unset
  const char* hosts = nullptr;  ///< its value begins with the host of rank 0
  /// if local_size is a list: the variable with this host's index in it
  const char* node = nullptr;
  /// The variable with the number of nodes. If its value equals that of `size`, there is one
  /// process per node.
  const char* nodes = nullptr;
};

// All known launchers. The first entry takes precedence. Each of the others may have started
// launchers that come later in this list (Note [Launchers]).
constexpr Launcher kLaunchers[] = {
    {"RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", true,
     "MASTER_ADDR"},
    {"SLURM's srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
     "SLURM_STEP_TASKS_PER_NODE", false, "SLURM_STEP_NODELIST", "SLURM_NODEID",
     "SLURM_STEP_NUM_NODES"},
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MVAPICH's mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"mpiexec (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"a launcher with PMIx", "PMIX_RANK"},
    {"MPICH's Hydra, by a port", "PMI_ID"},
    {"Cray's PALS", "PALS_RANKID"},
    {"IBM's JSM", "JSM_NAMESPACE_RANK"},
};
constexpr const Launcher& kByName = kLaunchers[0];
constexpr const Launcher& kSlurm = kLaunchers[1];
constexpr const Launcher& kOpenMpi = kLaunchers[2];

// If no launcher gives a rank, each of these variables shows that there are several processes. A
// SLURM variable shows this only if its value is above 1.
constexpr const char* kSignsOfSeveral[] = {
    "TESSERA_STORE", "MASTER_ADDR",           "PET_RDZV_ENDPOINT",   "PET_NNODES",  "SLURM_NTASKS",
    "SLURM_NPROCS",  "SLURM_NTASKS_PER_NODE", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"};

constexpr const char* kHowToStart =
    "start the program by srun, mpirun, tessera-run or torchrun --no-python, set RANK and "
    "WORLD_SIZE for each process, or set TESSERA_WORLD=single to train alone";

/// This process's identity, according to one launcher's variables.
struct Identity {
  const Launcher* launcher;
  Environment says;             // only the fields from `rank` through `host_of_rank_0`
  bool is_by_torchrun = false;  // torchrun or tessera-run has set RANK and WORLD_SIZE
  // This launcher has started one process per node, which may itself have started the node's ranks.
  bool is_one_per_node = false;
};

/// Adds a problem if only some of this launcher's variables are set.
void require_family(VariableReader& reader, const Launcher& launcher) {
  const bool has_all = reader.is_set(launcher.rank) && reader.is_set(launcher.size);
  const bool has_local = reader.is_set(launcher.local_rank) || reader.is_set(launcher.local_size);
  std::vector<const char*> names = {launcher.rank, launcher.size};
  if (has_local || launcher.node != nullptr || !(has_all || launcher.may_lack_local)) {
    names.insert(names.end(), {launcher.local_rank, launcher.local_size});
  }
  if (launcher.node != nullptr) names.push_back(launcher.node);
  reader.whole_family(names, kHowToStart);
}

/// Returns the number of ranks on this host.
std::optional<int> read_local_size(VariableReader& reader, const Launcher& launcher, int most) {
  if (launcher.node == nullptr) return reader.integer(launcher.local_size, 1, most, launcher.size);
  const int node = reader.integer(launcher.node, 0, kGreatest).value_or(kGreatest);
  auto tasks = tasks_of_node(reader.text(launcher.local_size), node);
  if (tasks > most) tasks.reset();
  reader.expect(launcher.local_size, tasks.has_value(),
                absl::StrCat("a list such as '4(x2),3' with a number from 1 to ", most, " for ",
                             launcher.node, " ", reader.text(launcher.node)));
  return tasks;
}

/// Returns SLURM's or PMIx's name of the job.
std::string job_id_of(const VariableReader& reader, const Launcher& launcher) {
  if (&launcher == &kOpenMpi) return reader.text("PMIX_NAMESPACE");
  const std::string job = reader.text("SLURM_JOB_ID"), step = reader.text("SLURM_STEP_ID");
  if (&launcher != &kSlurm || !whole_number(job) || !whole_number(step)) return "";
  return absl::StrCat("slurm-", job, ".", step);
}

std::optional<Identity> read_launcher(VariableReader& reader, const Launcher& launcher) {
  // A SLURM batch script is task 0, and has no number of tasks.
  const bool is_script = !reader.is_set(launcher.size) && reader.text(launcher.rank, "0") == "0";
  if (launcher.size == nullptr || (&launcher == &kSlurm && is_script)) return std::nullopt;
  require_family(reader, launcher);
  const auto size = reader.integer(launcher.size, 1, kGreatest);
  const int most = size.value_or(kGreatest);
  const auto rank = reader.integer(launcher.rank, 0, most - 1, launcher.size);
  const auto local_size = read_local_size(reader, launcher, most);
  const auto local_rank =
      reader.integer(launcher.local_rank, 0, local_size.value_or(most) - 1, launcher.local_size);
  const bool has_local = local_size && local_rank;
  if (!size || !rank || (launcher.node != nullptr && !has_local)) return std::nullopt;
  Identity identity{&launcher, {}};
  Environment& says = identity.says;
  says.rank = *rank;
  says.world_size = *size;
  says.has_local = has_local || *size == 1;
  says.local_rank = has_local ? *local_rank : 0;
  says.local_world_size = has_local ? *local_size : 1;
  says.launcher = launcher.name;
  says.rank_variable = launcher.rank;
  says.job_id = job_id_of(reader, launcher);
  says.host_of_rank_0 = reader.text(launcher.hosts);
  if (&launcher == &kSlurm) says.host_of_rank_0 = first_host(says.host_of_rank_0);
  identity.is_by_torchrun = &launcher == &kByName && reader.is_set("TORCHELASTIC_RUN_ID");
  identity.is_one_per_node = reader.text(launcher.size) == reader.text(launcher.nodes);
  return identity;
}

/// Returns true if a process with the identity `outer` may have started the launcher of `inner`.
bool may_have_started(const Identity& outer, const Identity& inner) {
  if (outer.launcher == &kByName) return false;
  if (outer.says.world_size == 1) return true;
  if (inner.is_by_torchrun) return !inner.says.is_one_host();
  return outer.says.world_size < inner.says.world_size &&
         (inner.launcher == &kByName || outer.is_one_per_node);
}

std::string says(const VariableReader& reader, const Launcher& launcher) {
  return absl::StrCat(launcher.rank, " says rank ", reader.text(launcher.rank), " of ",
                      reader.text(launcher.size, "an unknown number"));
}

void disagree(VariableReader& reader, const Launcher& own, const Launcher& other) {
  reader.problem(absl::StrCat(
      says(reader, own), ", but ", says(reader, other),
      ": it is not clear which launcher counts; start the program by one alone, unset what is left "
      "over from another job (env -u), or set TESSERA_WORLD=single to train alone"));
}

/// Returns a launcher that has set a rank; null if there is none. A launcher that has set no number
/// of ranks counts, too, because it may have started several. If `is_any` is false, only a rank
/// other than 0 counts. Ignores RANK. Also ignores SLURM's variable, because SLURM gives a batch
/// script a rank, too.
const Launcher* find_rank(const VariableReader& reader, bool is_any) {
  for (const Launcher& launcher : kLaunchers) {
    const bool is_sign =
        reader.text(launcher.rank, "0") != "0" || (is_any && reader.is_set(launcher.rank));
    if (is_sign && &launcher != &kByName && &launcher != &kSlurm) return &launcher;
  }
  return nullptr;
}

/// Adds a problem if variables ask for several processes, but none gives this process a rank.
void refuse_signs_of_several(VariableReader& reader) {
  const Launcher* const lone = find_rank(reader, true);
  const char* sign = lone == nullptr ? nullptr : lone->rank;
  for (const char* name : kSignsOfSeveral) {
    const std::string value = reader.text(name);
    const bool is_none = value.empty() || value == "0" || value == "1";
    const bool is_sign = reader.is_set(name) && !(absl::StartsWith(name, "SLURM_") && is_none);
    if (is_sign && sign == nullptr) sign = name;
  }
  if (sign == nullptr) return;
  reader.problem(absl::StrCat("RANK, WORLD_SIZE: not set, although ", sign, " is '",
                              reader.text(sign), "'; ", kHowToStart));
}

/// Adds a problem if another identity contradicts `own`. If `own` lacks the local rank and size,
/// takes them from another identity.
void reconcile(VariableReader& reader, const std::vector<Identity>& found, Identity& own) {
  const Launcher& launcher = *own.launcher;
  Environment& says = own.says;
  for (const Identity& other : found) {
    if (other.launcher == &launcher || may_have_started(other, own)) continue;
    const bool is_same = other.says.rank == says.rank && other.says.world_size == says.world_size;
    if (own.is_by_torchrun || !is_same) return disagree(reader, launcher, *other.launcher);
    if (says.has_local) continue;
    says.has_local = other.says.has_local;
    says.local_rank = other.says.local_rank;
    says.local_world_size = other.says.local_world_size;
  }
  // Looks for a launcher that has set a variable for the rank, but none for the number of ranks. If
  // torchrun has started ranks on this host only, that variable is a contradiction, whatever its
  // value, because each process of the launcher may have started a torchrun. In a world of one
  // rank, the variable is a contradiction only if its value is not 0.
  const bool is_any = own.is_by_torchrun && says.is_one_host() && found.size() == 1;
  const Launcher* const other =
      is_any || says.world_size == 1 ? find_rank(reader, is_any) : nullptr;
  if (other != nullptr) return disagree(reader, launcher, *other);
  if (says.has_local || launcher.may_lack_local) return;
  reader.whole_family({launcher.rank, launcher.local_rank, launcher.local_size}, kHowToStart);
}

}  // namespace

std::optional<int> tasks_of_node(const std::string& list, int node) {
  int64_t first = 0;  // number of the entry's first node
  std::optional<int> found;
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    const bool is_repeated = absl::ConsumeSuffix(&entry, ")");
    std::vector<absl::string_view> numbers = absl::StrSplit(entry, "(x");
    if (!is_repeated) numbers.push_back("1");
    const auto tasks = whole_number(numbers.front(), 1, kGreatest);
    const auto nodes = whole_number(numbers.back(), 1, kGreatest);
    if (numbers.size() != 2 || !tasks || !nodes) return std::nullopt;
    if (node >= first && node < first + *nodes) found = static_cast<int>(*tasks);
    first += *nodes;
  }
  return found;
}

std::string first_host(const std::string& list) {
  std::string host;
  absl::string_view rest = list;
  while (true) {
    const size_t end = rest.find_first_of("[,");
    absl::StrAppend(&host, rest.substr(0, end));
    if (end == absl::string_view::npos || rest[end] == ',') return host;
    rest.remove_prefix(end + 1);
    if (!absl::StrContains(rest, ']')) return "";
    absl::StrAppend(&host, rest.substr(0, rest.find_first_of(",-]")));
    rest.remove_prefix(rest.find(']') + 1);
  }
}

Environment read_identity(VariableReader& reader) {
  Environment alone;
  alone.has_local = true;
  if (reader.is_set("TESSERA_WORLD")) {
    const bool is_single = reader.text("TESSERA_WORLD") == "single";
    reader.expect("TESSERA_WORLD", is_single && reader.text("WORLD_SIZE", "1") == "1",
                  "'single', and a WORLD_SIZE of 1 or none, or no such variable");
    alone.launcher = alone.rank_variable = "TESSERA_WORLD";
    return alone;
  }
  std::vector<Identity> found;
  // Once RANK and WORLD_SIZE have given a rank, the other launchers' variables are read with this
  // reader, and its problems are ignored.
  VariableReader unheeded = reader;
  for (const Launcher& launcher : kLaunchers) {
    const bool is_heeded = found.empty() || found.front().launcher != &kByName;
    const auto identity = read_launcher(is_heeded ? reader : unheeded, launcher);
    if (identity) found.push_back(*identity);
  }
  if (found.empty() && !reader.has_problems()) refuse_signs_of_several(reader);
  if (found.empty() || reader.has_problems()) return alone;
  Identity own = found.front();
  for (const Identity& other : found) {
    if (may_have_started(own, other)) own = other;
  }
  reconcile(reader, found, own);
  return own.says;
}

absl::StatusOr<Environment> read_own_rank() {
  const auto lookup = [](const char* name) -> std::optional<std::string> {
    for (const absl::string_view sign : {"TESSERA_STORE", "MASTER_ADDR", "MASTER_PORT",
                                         "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"}) {
      if (sign == name) return std::nullopt;
    }
    return process_environment(name);
  };
  return read_environment(lookup, {.identity = true, .store = false});
}

}  // namespace tessera::internal

#include "tessera/core/process/launch_family.h"

#include <array>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/process/slurm_lists.h"

namespace tessera::internal {
namespace {

/// The variables by which a launcher tells its processes who they are.
struct Family {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr Family kExplicit = {"RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK",
                              "LOCAL_WORLD_SIZE"};
constexpr Family kSlurm = {"SLURM's srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                           "SLURM_STEP_TASKS_PER_NODE"};
constexpr Family kOthers[] = {
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MVAPICH's mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"mpiexec (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

// By which launchers say no number of processes: PMIx's; Hydra's where it speaks to processes by a
// port; those of Cray and IBM.
constexpr const char* kLoneRanks[] = {"PMIX_RANK", "PMI_ID", "PALS_RANKID", "JSM_NAMESPACE_RANK"};

constexpr const char* kNode = "SLURM_NODEID";
constexpr const char* kBothOrNeither = "set both or neither";
constexpr const char* kRemedy =
    "a launcher sets them all: start the program by it, or set RANK and WORLD_SIZE for each "
    "process; TESSERA_WORLD=single is a process that trains alone";

/// Who a family says that this process is.
struct Identity {
  const Family* family;
  NumberAndCount world;
  std::optional<NumberAndCount> local;
  bool is_one_per_node = false;  // as those are that start others on their nodes

  /// Whether it is of a process that has started the one that `inner` tells of.
  bool may_have_started(const Identity& inner) const {
    if (world.count == 1) return true;
    return is_one_per_node && world.count < inner.world.count;
  }

  bool is_of_one_host() const {
    return world.count == 1 || (local.has_value() && local->count == world.count);
  }

  std::string text() const {
    return absl::StrCat(family->rank, ", ", family->size, " say rank ", world.number, " of ",
                        world.count);
  }
};

bool same(const NumberAndCount& a, const NumberAndCount& b) {
  return a.number == b.number && a.count == b.count;
}

/// The command that runs another one without the variables of a family.
std::string without(const Family& family) {
  return absl::StrCat("env -u ", family.rank, " -u ", family.size, " -u ", family.local_rank,
                      " -u ", family.local_size);
}

void disagree(VariableReader& reader, const Identity& a, const Identity& b) {
  // All of them: a part of a family is an error, too. Who says that it is one of several is right,
  // where the other says that it is alone.
  const std::string without_a = absl::StrCat(without(*a.family), " ./train");
  const std::string without_b = absl::StrCat(without(*b.family), " ./train");
  reader.problem(absl::StrCat(
      a.text(), ", but ", b.text(),
      ": two launchers disagree about this process; take out what did not start it (",
      b.world.count == 1 ? "" : without_a, a.world.count == 1 || b.world.count == 1 ? "" : ", or ",
      a.world.count == 1 ? "" : without_b, "), or set TESSERA_WORLD=single to train alone"));
}

/// A launcher that knows its own host alone, and several of them, or in it a launcher of several:
/// each would be a world of its own.
void refuse_worlds_apart(VariableReader& reader, const Identity& own, const Identity& other) {
  if (!own.local) return disagree(reader, own, other);  // a leftover, as launchers give it
  reader.problem(absl::StrCat(
      own.text(), ", all on this host (", own.family->local_size, "), but ", other.text(),
      ": one launcher has started the other, and the ranks of tessera-run or torchrun would know "
      "only each other; start the program by ",
      other.family->launcher, " alone. If that has started tessera-run once, for all of them: ",
      without(*other.family), " tessera-run ...; if ", own.family->rank,
      " is left over from another job: ", without(*own.family), " ./train"));
}

/// The pair of a rank and a size, which may not be part of a larger one.
std::optional<NumberAndCount> read_local(VariableReader& reader, const Family& family,
                                         const NumberAndCount& world) {
  if (!reader.whole_family({family.local_rank, family.local_size}, kBothOrNeither)) {
    return std::nullopt;
  }
  const auto local = read_number_and_count(reader, family.local_rank, family.local_size);
  if (local && local->count > world.count) {
    reader.problem(absl::StrCat(family.local_size, ": got '", local->count, "', expected at most ",
                                family.size, ", which is ", world.count));
    return std::nullopt;
  }
  return local;
}

std::optional<Identity> read_explicit(VariableReader& reader) {
  const bool is_whole = reader.whole_family({kExplicit.rank, kExplicit.size}, kBothOrNeither);
  const auto world = read_number_and_count(reader, kExplicit.rank, kExplicit.size);
  const bool is_one = world && is_whole;
  const auto local = read_local(reader, kExplicit, is_one ? *world : NumberAndCount{0, 2147483647});
  if (!is_one) return std::nullopt;
  return Identity{&kExplicit, *world, local, false};
}

std::optional<Identity> read_other(VariableReader& reader, const Family& family) {
  // Where there is no rank or no size, the local ones are missing, too, if they are.
  std::vector<std::string> names = {family.rank, family.size};
  if (!reader.is_set(family.rank) || !reader.is_set(family.size)) {
    names.insert(names.end(), {family.local_rank, family.local_size});
  }
  if (!reader.whole_family(names, kRemedy)) return std::nullopt;
  const auto world = read_number_and_count(reader, family.rank, family.size);
  if (!world) return std::nullopt;
  return Identity{&family, *world, read_local(reader, family, *world), false};
}

/// A task of srun, with as many on its host as the list says for it.
std::optional<Identity> read_slurm(VariableReader& reader) {
  // A batch script is task 0, without a number of tasks.
  const bool is_script = !reader.is_set(kSlurm.rank) || reader.text(kSlurm.rank) == "0";
  if (!reader.is_set(kSlurm.size) && is_script) return std::nullopt;
  if (!reader.whole_family({kSlurm.rank, kSlurm.size, kSlurm.local_rank, kSlurm.local_size, kNode},
                           kRemedy)) {
    return std::nullopt;
  }
  const auto world = read_number_and_count(reader, kSlurm.rank, kSlurm.size);
  const auto local_rank = reader.integer(kSlurm.local_rank, 0, 2147483647);
  const auto node = reader.integer(kNode, 0, 2147483647);
  if (!world || !local_rank || !node) return std::nullopt;
  const std::string list = reader.text(kSlurm.local_size);
  const int tasks = tasks_of_node(list, *node);
  if (tasks == 0) {
    reader.problem(absl::StrCat(kSlurm.local_size, ": got '", list,
                                "', expected a list such as '4(x2),3' with an entry for ", kNode,
                                ", which is ", *node));
    return std::nullopt;
  }
  if (*local_rank >= tasks || tasks > world->count) {
    reader.problem(absl::StrCat(kSlurm.local_rank, ": got '", *local_rank, "' of ", tasks,
                                " tasks on this host (", kSlurm.local_size,
                                "), expected less, and ", "at most ", kSlurm.size, ", which is ",
                                world->count));
    return std::nullopt;
  }
  const bool is_one_per_node = reader.text(kSlurm.size) == reader.text("SLURM_STEP_NUM_NODES");
  return Identity{&kSlurm, *world, NumberAndCount{*local_rank, tasks}, is_one_per_node};
}

/// Everybody but RANK and WORLD_SIZE.
std::vector<Identity> read_schedulers(VariableReader& reader) {
  std::vector<Identity> found;
  if (const auto task = read_slurm(reader)) found.push_back(*task);
  for (const Family& family : kOthers) {
    if (const auto process = read_other(reader, family)) found.push_back(*process);
  }
  return found;
}

/// By which launchers tell a process its rank, with a number of processes or without.
std::vector<const char*> rank_variables() {
  std::vector<const char*> ranks(std::begin(kLoneRanks), std::end(kLoneRanks));
  for (const Family& family : kOthers) ranks.push_back(family.rank);
  return ranks;
}

/// tessera-run or torchrun of one host, which each of several processes may have started.
void refuse_beside_lone_rank(VariableReader& reader, const Identity& own) {
  for (const char* name : rank_variables()) {
    if (!reader.is_set(name)) continue;
    reader.problem(absl::StrCat(
        own.text(), ", all on this host, but ", name,
        " is set: a launcher of unknown size has started tessera-run or torchrun, and the ranks of "
        "each would know only each other; start the program by that launcher alone. If it has "
        "started one, for all of them: env -u ",
        name, " tessera-run ...; if ", own.family->rank,
        " is left over from another job: ", without(*own.family), " ./train"));
    return;
  }
}

/// A process that several processes were wanted for, and that has no rank.
void refuse_signs_of_several(VariableReader& reader) {
  for (const char* name : {"TESSERA_STORE", "MASTER_ADDR"}) {
    if (!reader.is_set(name)) continue;
    reader.problem(absl::StrCat("RANK, WORLD_SIZE: not set, although ", name,
                                " is; start the program with tessera-run, or unset ", name));
    return;
  }
  for (const char* name : {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE",
                           "SLURM_JOB_NUM_NODES", "SLURM_NNODES"}) {
    const std::string tasks = reader.text(name);
    if (tasks.empty() || tasks == "0" || tasks == "1") continue;
    const bool is_script = reader.is_set(kSlurm.rank);
    reader.problem(absl::StrCat(
        is_script ? "" : absl::StrCat(kSlurm.rank, ", "), kSlurm.size, ": not set, although ", name,
        " is ", tasks, ": SLURM has granted several tasks, and this process is ",
        is_script ? "a batch script's" : "in a shell of the allocation",
        ", not one of srun's; start it by srun, or set TESSERA_WORLD=single to train alone"));
    return;
  }
  for (const char* name : kLoneRanks) {
    if (!reader.is_set(name)) continue;
    reader.problem(absl::StrCat(
        "RANK, WORLD_SIZE: not set, although ", name,
        " is: a launcher has started this process, and says not of how many; start it by mpirun or "
        "srun, set RANK and WORLD_SIZE, or set TESSERA_WORLD=single to train alone"));
    return;
  }
  for (const char* name : {"PET_RDZV_ENDPOINT", "PET_NNODES"}) {
    if (!reader.is_set(name)) continue;
    reader.problem(absl::StrCat("RANK, WORLD_SIZE: not set, although ", name,
                                " is, which torchrun reads (PyTorchJob's elasticPolicy); start "
                                "the program by torchrun --no-python, or set TESSERA_WORLD=single "
                                "to train alone"));
    return;
  }
}

/// SLURM's or PMIx's name of the job.
std::string job_id_of(const VariableReader& reader, const Family& family) {
  if (&family != &kSlurm) {
    return std::string_view(family.rank) == kOthers[0].rank ? reader.text("PMIX_NAMESPACE") : "";
  }
  const std::string job = reader.text("SLURM_JOB_ID"), step = reader.text("SLURM_STEP_ID");
  for (const std::string& number : {job, step}) {
    if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos) return "";
  }
  return absl::StrCat("slurm-", job, ".", step);
}

void take(const VariableReader& reader, const Identity& identity, Environment& environment) {
  environment.launcher = identity.family->launcher;
  environment.rank_variable = identity.family->rank;
  environment.rank = identity.world.number;
  environment.world_size = identity.world.count;
  environment.has_local = identity.local.has_value() || identity.world.count == 1;
  const NumberAndCount local = identity.local.value_or(NumberAndCount{});
  environment.local_rank = local.number;
  environment.local_world_size = local.count;
  environment.job_id = job_id_of(reader, *identity.family);
  if (identity.family == &kSlurm) {
    environment.host_of_rank_0 = first_host(reader.text("SLURM_STEP_NODELIST"));
  }
}

/// RANK and WORLD_SIZE, which know more than a scheduler, but not less.
void take_explicit(VariableReader& reader, Identity identity, Environment& environment) {
  const bool is_launchers = reader.is_set("TORCHELASTIC_RUN_ID");
  VariableReader quiet = reader;  // what is wrong with a scheduler's variables is of no interest
  const std::vector<Identity> others = read_schedulers(quiet);
  if (is_launchers && identity.is_of_one_host() && others.empty()) {
    refuse_beside_lone_rank(reader, identity);
  }
  for (const Identity& other : others) {
    if (other.world.count == 1 || (is_launchers && !identity.is_of_one_host())) continue;
    if (is_launchers) return refuse_worlds_apart(reader, identity, other);
    if (same(other.world, identity.world)) {
      if (!identity.local) identity.local = other.local;
    } else if (identity.world.count <= other.world.count) {
      disagree(reader, identity, other);
    }
  }
  take(reader, identity, environment);
  environment.host_of_rank_0 = reader.text("MASTER_ADDR");
}

void take_scheduler(VariableReader& reader, Environment& environment) {
  const std::vector<Identity> found = read_schedulers(reader);
  std::optional<Identity> first;
  for (const Identity& identity : found) {
    if (!first || first->may_have_started(identity)) first = identity;
  }
  if (!first) {
    if (!reader.has_problems()) refuse_signs_of_several(reader);
    return;
  }
  for (const Identity& other : found) {
    if (same(other.world, first->world)) {
      if (!first->local) first->local = other.local;
    } else if (!other.may_have_started(*first)) {
      return disagree(reader, *first, other);
    }
  }
  take(reader, *first, environment);
  if (environment.has_local || reader.has_problems()) return;
  reader.problem(absl::StrCat(first->family->local_rank, ", ", first->family->local_size,
                              ": not set, although ", first->family->rank, ", ",
                              first->family->size, " are; ", kRemedy));
}

/// A rank other than 0 is in no world of one, whatever else says so.
void refuse_another_rank(VariableReader& reader, const Environment& environment) {
  if (environment.world_size != 1 || environment.rank_variable.empty()) return;
  for (const char* name : rank_variables()) {
    if (!reader.is_set(name) || reader.text(name) == "0") continue;
    reader.problem(absl::StrCat(
        environment.rank_variable, " is of a world of one process, but ", name, " is ",
        reader.text(name),
        ": a launcher has started several; take out what did not start this process (env -u ...), "
        "or set TESSERA_WORLD=single to train alone"));
    return;
  }
}

/// Whether the process was told to be alone.
bool is_single(VariableReader& reader) {
  if (!reader.is_set("TESSERA_WORLD")) return false;
  const std::string value = reader.text("TESSERA_WORLD");
  if (value != "single") {
    reader.problem(
        absl::StrCat("TESSERA_WORLD: got '", value, "', expected 'single', or no such variable"));
  } else if (reader.is_set("WORLD_SIZE") && reader.text("WORLD_SIZE") != "1") {
    reader.problem(absl::StrCat("TESSERA_WORLD: got 'single', although WORLD_SIZE is '",
                                reader.text("WORLD_SIZE"), "'; unset one of them"));
  }
  return true;
}

}  // namespace

void read_identity(VariableReader& reader, Environment& environment) {
  environment.has_local = true;
  if (is_single(reader)) {
    environment.launcher = environment.rank_variable = "TESSERA_WORLD";
    return;
  }
  const auto identity = read_explicit(reader);
  if (identity) {
    take_explicit(reader, *identity, environment);
    if (!reader.has_problems()) refuse_another_rank(reader, environment);
    return;
  }
  const bool is_set = reader.is_set(kExplicit.rank) || reader.is_set(kExplicit.size);
  for (const char* name : {kExplicit.local_rank, kExplicit.local_size}) {
    if (is_set || !reader.is_set(name)) continue;
    reader.problem(absl::StrCat("RANK, WORLD_SIZE: not set, although ", name,
                                " is; start the program with tessera-run, or unset ", name));
    return;
  }
  if (!is_set && !reader.has_problems()) take_scheduler(reader, environment);
  if (!reader.has_problems()) refuse_another_rank(reader, environment);
}

}  // namespace tessera::internal

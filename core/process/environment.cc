#include "tessera/environment.h"

#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

namespace tessera {
namespace {

constexpr int64_t kMaxInt = 2147483647;

/// Reads variables and gathers what is wrong with them.
class Reader {
 public:
  explicit Reader(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  bool is_set(const char* name) const { return lookup_(name).has_value(); }
  std::string text(const char* name) const { return lookup_(name).value_or(""); }

  /// The value if it is set and good; a problem if it is set and bad.
  std::optional<int> integer(const char* name, int64_t least, int64_t greatest) {
    const auto value = lookup_(name);
    if (!value) return std::nullopt;
    int64_t number = 0;
    const char* const end = value->data() + value->size();
    const auto [stop, error] = std::from_chars(value->data(), end, number);
    const bool digits_only =
        !value->empty() && value->find_first_not_of("0123456789") == std::string::npos;
    if (!digits_only || error != std::errc() || stop != end || number < least ||
        number > greatest) {
      problem(absl::StrCat(name, ": got '", *value, "', expected an integer from ", least, " to ",
                           greatest, " and nothing else"));
      return std::nullopt;
    }
    return static_cast<int>(number);
  }

  /// A problem for each missing one, if any of the family is there. Returns whether all are.
  bool whole_family(const std::vector<const char*>& names) {
    std::vector<std::string> present;
    std::vector<std::string> missing;
    for (const char* name : names) (is_set(name) ? present : missing).push_back(name);
    if (!present.empty() && !missing.empty()) {
      problem(absl::StrCat(absl::StrJoin(missing, ", "), ": not set, although ",
                           absl::StrJoin(present, ", "), present.size() == 1 ? " is" : " are",
                           "; set both or neither"));
    }
    return missing.empty();
  }

  void problem(std::string text) { problems_.push_back(std::move(text)); }

  absl::Status status() const {
    if (problems_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("[environment] ", absl::StrJoin(problems_, "\n[environment] ")));
  }

 private:
  const EnvironmentLookup& lookup_;
  std::vector<std::string> problems_;
};

/// One of two numbers that count from 0 and say how many there are.
void read_number_and_count(Reader& reader, const char* number_name, const char* count_name,
                           int& number, int& count) {
  reader.whole_family({number_name, count_name});
  const auto read_count = reader.integer(count_name, 1, kMaxInt);
  const auto read_number = reader.integer(number_name, 0, kMaxInt);
  if (!read_count || !read_number) return;
  count = *read_count;
  number = *read_number;
  if (number >= count) {
    reader.problem(absl::StrCat(number_name, ": got '", number, "', expected less than ",
                                count_name, ", which is ", count));
  }
}

/// Launchers that say in variables of their own who is who, and which one of them starts several
/// processes.
struct ForeignLauncher {
  const char* name;
  const char* size;
  const char* rank;
};
constexpr ForeignLauncher kForeignLaunchers[] = {
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"MVAPICH's mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
    {"mpiexec (MPICH, Intel MPI)", "PMI_SIZE", "PMI_RANK"},
    {"SLURM's srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
};

/// Each of a foreign launcher's processes would be a world of one that trains alone.
void refuse_foreign_launchers(Reader& reader) {
  for (const ForeignLauncher& launcher : kForeignLaunchers) {
    int tasks = 0;
    if (!absl::SimpleAtoi(reader.text(launcher.size), &tasks) || tasks <= 1) continue;
    reader.problem(absl::StrCat(
        "RANK, WORLD_SIZE: not set, although ", launcher.name, " has started ", tasks,
        " processes (", launcher.size,
        "), each of which would train alone; on one host start the program once with tessera-run, "
        "else set them for each process: sh -c 'RANK=$",
        launcher.rank, " WORLD_SIZE=$", launcher.size,
        " exec ./train'; RANK=0 WORLD_SIZE=1 is a process that does train alone"));
    return;
  }
}

void read_identity(Reader& reader, Environment& environment) {
  read_number_and_count(reader, "RANK", "WORLD_SIZE", environment.rank, environment.world_size);
  read_number_and_count(reader, "LOCAL_RANK", "LOCAL_WORLD_SIZE", environment.local_rank,
                        environment.local_world_size);
  const bool alone = !reader.is_set("RANK") && !reader.is_set("WORLD_SIZE");
  if (alone) {
    for (const char* name : {"LOCAL_RANK", "TESSERA_STORE", "MASTER_ADDR"}) {
      if (!reader.is_set(name)) continue;
      reader.problem(absl::StrCat("RANK, WORLD_SIZE: not set, although ", name,
                                  " is; start the program with tessera-run, or unset ", name));
      return;
    }
    refuse_foreign_launchers(reader);
  } else if (environment.local_world_size > environment.world_size) {
    reader.problem(absl::StrCat("LOCAL_WORLD_SIZE: got '", environment.local_world_size,
                                "', expected at most WORLD_SIZE, which is ",
                                environment.world_size));
  }
}

void read_store(Reader& reader, Environment& environment) {
  if (reader.is_set("TESSERA_STORE")) {
    environment.store_url = reader.text("TESSERA_STORE");
    const auto path = parse_store_url(environment.store_url);
    if (!path.ok()) {
      reader.problem(absl::StrCat("TESSERA_STORE: ", std::string(path.status().message())));
    }
  }
  reader.whole_family({"MASTER_ADDR", "MASTER_PORT"});
  if (const auto port = reader.integer("MASTER_PORT", 1, 65535)) environment.master_port = *port;
  if (reader.is_set("MASTER_ADDR")) {
    environment.master_addr = reader.text("MASTER_ADDR");
    if (environment.master_addr.empty() ||
        environment.master_addr.find_first_of(" \t\r\n") != std::string::npos) {
      reader.problem(absl::StrCat("MASTER_ADDR: got '", environment.master_addr,
                                  "', expected a host name or an address"));
    }
  }
  if (reader.is_set("TORCHELASTIC_USE_AGENT_STORE")) {
    const std::string value = reader.text("TORCHELASTIC_USE_AGENT_STORE");
    environment.agent_store = value == "True";
    if (value != "True" && value != "False") {
      reader.problem(absl::StrCat("TORCHELASTIC_USE_AGENT_STORE: got '", value,
                                  "', expected 'True' or 'False'"));
    }
  }
  const bool nowhere = !reader.is_set("TESSERA_STORE") && !reader.is_set("MASTER_ADDR") &&
                       !reader.is_set("MASTER_PORT");
  if (environment.world_size > 1 && nowhere) {
    reader.problem(
        absl::StrCat("TESSERA_STORE, MASTER_ADDR, MASTER_PORT: not set, expected one place where ",
                     environment.world_size, " ranks meet; start the program with tessera-run"));
  }
}

/// For a directory that others use: its mode and owner are not to be touched.
std::string own_directory_advice(const std::string& directory) {
  const bool is_open = ::access(directory.c_str(), W_OK | X_OK) == 0;
  return absl::StrCat("make a directory of your own and name a file in it: mkdir -m 700 ",
                      is_open ? directory : "/tmp", "/tessera-", ::geteuid());
}

}  // namespace

std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

absl::StatusOr<Environment> read_environment(const EnvironmentLookup& lookup,
                                             EnvironmentNeeds needs) {
  Reader reader(lookup);
  Environment environment;
  if (needs.identity) read_identity(reader, environment);
  if (needs.store) read_store(reader, environment);
  if (reader.is_set("TESSERA_JOB_TOKEN")) {
    environment.job_token = reader.text("TESSERA_JOB_TOKEN");
    if (environment.job_token.empty()) {
      reader.problem("TESSERA_JOB_TOKEN: got '', expected a secret text, or no such variable");
    }
  }
  environment.run_id = reader.text("TORCHELASTIC_RUN_ID");
  environment.attempt = reader.text("TORCHELASTIC_RESTART_COUNT");
  const absl::Status status = reader.status();
  if (!status.ok()) return status;
  return environment;
}

absl::StatusOr<std::string> parse_store_url(const std::string& url) {
  const auto bad = [&url](auto... reason) {
    return absl::InvalidArgumentError(absl::StrCat("got '", url, "', expected ", reason...));
  };
  constexpr size_t kSchemeLength = 7;
  if (!absl::StartsWith(url, "file:///")) return bad("file:///directory/file");
  std::string path = url.substr(kSchemeLength);
  const size_t slash = path.rfind('/');
  if (slash == 0 || slash + 1 == path.size()) return bad("file:///directory/file");
  const std::string directory = path.substr(0, slash);
  struct stat status {};
  if (::lstat(directory.c_str(), &status) != 0) {
    return bad("a directory ", directory, " that exists; make it: mkdir -m 700 ", directory);
  }
  if (!S_ISDIR(status.st_mode)) return bad(directory, " to be a directory");
  if (status.st_uid != ::geteuid()) {
    return bad(directory, " to belong to this user (", ::geteuid(), "), not to user ",
               status.st_uid, "; ", own_directory_advice(directory));
  }
  if ((status.st_mode & (S_IWOTH | S_ISVTX)) != 0) {
    return bad("a directory that is closed to other users, and ", directory, " is for everyone; ",
               own_directory_advice(directory));
  }
  if ((status.st_mode & 0077) != 0) {
    return bad(directory, " to be closed to other users; run chmod 700 ", directory,
               " if nobody else needs it, else ", own_directory_advice(directory));
  }
  return path;
}

}  // namespace tessera

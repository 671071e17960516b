#include "tessera/environment.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

#include "tessera/core/process/launchers.h"
#include "tessera/core/process/variable_reader.h"

namespace tessera {
namespace {

using internal::VariableReader;

/// Whether it can be the name or address of a host.
bool is_host(const std::string& text) {
  return !text.empty() && text.find_first_of(" \t\r\n") == std::string::npos;
}

constexpr const char* kPlaces = "TESSERA_STORE, MASTER_ADDR, MASTER_PORT";

void read_store_url(VariableReader& reader, Environment& environment) {
  if (!reader.is_set("TESSERA_STORE")) return;
  environment.store_url = reader.text("TESSERA_STORE");
  const absl::Status status = is_tcp_url(environment.store_url)
                                  ? parse_tcp_url(environment.store_url).status()
                                  : parse_store_url(environment.store_url).status();
  if (!status.ok()) {
    reader.problem(absl::StrCat("TESSERA_STORE: ", std::string(status.message())));
  }
}

void read_master(VariableReader& reader, Environment& environment) {
  reader.whole_family({"MASTER_ADDR", "MASTER_PORT"}, "set both or neither");
  environment.master_port = reader.integer("MASTER_PORT", 1, 65535).value_or(0);
  environment.master_addr = reader.text("MASTER_ADDR");
  reader.expect("MASTER_ADDR", is_host(environment.master_addr), "a host name or an address");
}

void read_agent_store(VariableReader& reader, Environment& environment) {
  constexpr const char* kName = "TORCHELASTIC_USE_AGENT_STORE";
  const std::string value = reader.text(kName);
  environment.agent_store = value == "True";
  reader.expect(kName, value == "True" || value == "False", "'True' or 'False'");
  reader.expect(kName, !environment.agent_store || reader.is_set("MASTER_ADDR"),
                "MASTER_ADDR, where torchrun's store is, to be set; unset it, as it is left over "
                "from another job");
}

/// Where srun's tasks on several hosts meet: where rank 0 is, at a port that all of them derive.
void derive_master(const VariableReader& reader, Environment& environment) {
  constexpr int64_t kFirstPort = 20000, kPorts = 10000;  // below those that the kernel chooses
  const auto job = internal::whole_number(reader.text("SLURM_JOB_ID"));
  const auto step = internal::whole_number(reader.text("SLURM_STEP_ID"));
  if (environment.host_of_rank_0.empty() || !job || !step) return;
  environment.master_addr = environment.host_of_rank_0;
  environment.master_port =
      static_cast<int>(kFirstPort + ((*job % kPorts) * 7 + *step % kPorts) % kPorts);
}

/// Where ranks meet to whom no variable says it. Those of a scheduler on one host need none.
void read_no_store(VariableReader& reader, Environment& environment) {
  if (environment.is_of_scheduler()) {
    if (environment.is_one_host()) return;
    derive_master(reader, environment);
    if (!environment.master_addr.empty() || reader.has_problems()) return;
    return reader.problem(absl::StrCat(
        kPlaces, ": not set, although ", environment.launcher, " has started ",
        environment.local_world_size, " of ", environment.world_size,
        " ranks on this host; expected one address where all of them meet: MASTER_ADDR, the host "
        "of rank 0, and MASTER_PORT. Ranks on CPUs need none: backend 'mpi' connects them"));
  }
  const std::string size = reader.text("WORLD_SIZE");
  const bool is_unknown = reader.has_problems() && reader.is_set("WORLD_SIZE");
  if (size == "1" || (environment.world_size == 1 && !is_unknown)) return;
  reader.problem(absl::StrCat(kPlaces, ": not set, expected one place where ", size,
                              " ranks meet; start the program with tessera-run"));
}

void read_place(VariableReader& reader, Environment& environment) {
  if (environment.rank_variable == "TESSERA_WORLD") return;
  read_store_url(reader, environment);
  read_master(reader, environment);
  read_agent_store(reader, environment);
  const bool is_somewhere = reader.is_set("TESSERA_STORE") || reader.is_set("MASTER_ADDR") ||
                            reader.is_set("MASTER_PORT");
  if (!is_somewhere) read_no_store(reader, environment);
}

/// What a process is told beside who it is and where its ranks meet.
void read_rest(VariableReader& reader, Environment& environment) {
  constexpr size_t kLongest = 64;
  const std::string verbose = reader.text("TESSERA_VERBOSE");
  environment.is_verbose = verbose == "1";
  reader.expect("TESSERA_VERBOSE", verbose == "0" || verbose == "1", "'0' or '1'");
  environment.job_token = reader.text("TESSERA_JOB_TOKEN");
  reader.expect("TESSERA_JOB_TOKEN", !environment.job_token.empty(),
                "a secret text, or no such variable");
  environment.host = reader.text("TESSERA_HOST");
  const bool is_name = std::all_of(environment.host.begin(), environment.host.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
  const bool is_short = !environment.host.empty() && environment.host.size() <= kLongest;
  reader.expect("TESSERA_HOST", is_name && is_short,
                absl::StrCat("up to ", kLongest, " letters, digits, '.', '_' and '-'; unset it"));
  environment.run_id = reader.text("TORCHELASTIC_RUN_ID");
  environment.attempt = reader.text("TORCHELASTIC_RESTART_COUNT");
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
  VariableReader reader(lookup);
  Environment environment = needs.identity ? internal::read_identity(reader) : Environment();
  if (needs.store) read_place(reader, environment);
  read_rest(reader, environment);
  const absl::Status status = reader.status();
  if (!status.ok()) return status;
  return environment;
}

std::string describe_identity(const Environment& environment) {
  std::string text = absl::StrCat("rank ", environment.rank, " of ", environment.world_size);
  if (environment.has_local && environment.world_size > 1) {
    absl::StrAppend(&text, ", local rank ", environment.local_rank, " of ",
                    environment.local_world_size);
  }
  if (environment.launcher.empty()) return absl::StrCat(text, ", as no variable says otherwise");
  absl::StrAppend(&text, ", by ", environment.launcher);
  const bool is_named = environment.launcher.find(environment.rank_variable) != std::string::npos;
  if (!is_named) absl::StrAppend(&text, " (", environment.rank_variable, ")");
  if (!environment.job_id.empty()) absl::StrAppend(&text, ", job ", environment.job_id);
  if (!environment.host_of_rank_0.empty()) {
    absl::StrAppend(&text, ", rank 0 on ", environment.host_of_rank_0);
  }
  return text;
}

bool is_tcp_url(const std::string& url) { return absl::StartsWith(url, "tcp://"); }

absl::StatusOr<StoreAddress> parse_tcp_url(const std::string& url) {
  absl::string_view rest = url;
  const bool is_tcp = absl::ConsumePrefix(&rest, "tcp://");
  const bool is_bracketed = absl::ConsumePrefix(&rest, "[");  // [::1]
  const size_t end = is_bracketed ? rest.find("]:") : rest.rfind(':');
  if (is_tcp && end != absl::string_view::npos) {
    const std::string host(rest.substr(0, end));
    const absl::string_view digits = rest.substr(end + (is_bracketed ? 2 : 1));
    const auto port = internal::whole_number(digits, 1, 65535);
    const bool is_name = is_bracketed || host.find_first_of(":/?[]") == std::string::npos;
    if (port && digits.size() <= 5 && is_name && is_host(host)) {
      return StoreAddress{host, static_cast<int>(*port)};
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "got '", url,
      "', expected tcp://host:port, or tcp://[address]:port for IPv6, with a port "
      "from 1 to 65535 and nothing else; rank and world size have variables or options"));
}

absl::StatusOr<std::string> parse_store_url(const std::string& url) {
  const auto bad = [&url](auto... reason) {
    return absl::InvalidArgumentError(absl::StrCat("got '", url, "', expected ", reason...));
  };
  absl::string_view place = url;
  const bool is_file = absl::ConsumePrefix(&place, "file://") && absl::StartsWith(place, "/");
  const std::string path(place);
  const size_t slash = path.rfind('/');
  if (!is_file || slash == 0 || slash + 1 == path.size()) {
    return bad("file:///directory/file or tcp://host:port");
  }
  const std::string directory = path.substr(0, slash);
  struct stat status {};
  if (::lstat(directory.c_str(), &status) != 0) {
    return bad("a directory ", directory, " that exists; make it: mkdir -m 700 ", directory);
  }
  if (!S_ISDIR(status.st_mode)) return bad(directory, " to be a directory, and no link to one");
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

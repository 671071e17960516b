#include "tessera/environment.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/process/launch_family.h"
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
  if (const auto port = reader.integer("MASTER_PORT", 1, 65535)) environment.master_port = *port;
  if (!reader.is_set("MASTER_ADDR")) return;
  environment.master_addr = reader.text("MASTER_ADDR");
  if (!is_host(environment.master_addr)) {
    reader.problem(absl::StrCat("MASTER_ADDR: got '", environment.master_addr,
                                "', expected a host name or an address"));
  }
}

/// Where srun's tasks on several hosts meet: where rank 0 is, at a port that all of them derive.
void derive_master(const VariableReader& reader, Environment& environment) {
  constexpr int64_t kFirstPort = 20000, kPorts = 10000;  // below those that the kernel chooses
  int64_t job = 0, step = 0;
  if (!absl::SimpleAtoi(reader.text("SLURM_JOB_ID"), &job) ||
      !absl::SimpleAtoi(reader.text("SLURM_STEP_ID"), &step) || job < 0 || step < 0) {
    return;
  }
  environment.master_addr = environment.host_of_rank_0;
  environment.master_port =
      static_cast<int>(kFirstPort + ((job % kPorts) * 7 + step % kPorts) % kPorts);
}

/// Where ranks meet to whom no variable says it. Those of a scheduler on one host need none.
void read_no_store(VariableReader& reader, Environment& environment) {
  const bool is_unknown = reader.has_problems() && reader.is_set("WORLD_SIZE");
  if (environment.world_size == 1 && (!is_unknown || reader.text("WORLD_SIZE") == "1")) return;
  if (environment.is_of_scheduler()) {
    if (environment.is_one_host()) return;
    if (!environment.host_of_rank_0.empty()) derive_master(reader, environment);
    if (!environment.master_addr.empty()) return;
    if (reader.has_problems()) return;
    reader.problem(absl::StrCat(
        kPlaces, ": not set, although ", environment.launcher, " has started ",
        environment.local_world_size, " of ", environment.world_size,
        " ranks on this host; expected one address where all of them meet: MASTER_ADDR, the host "
        "of rank 0, and MASTER_PORT. Ranks on CPUs need none: backend 'mpi' connects them"));
    return;
  }
  reader.problem(absl::StrCat(kPlaces, ": not set, expected one place where ",
                              reader.text("WORLD_SIZE"),
                              " ranks meet; start the program with tessera-run"));
}

void read_place(VariableReader& reader, Environment& environment) {
  if (environment.rank_variable == "TESSERA_WORLD") return;
  read_store_url(reader, environment);
  read_master(reader, environment);
  if (reader.is_set("TORCHELASTIC_USE_AGENT_STORE")) {
    const std::string value = reader.text("TORCHELASTIC_USE_AGENT_STORE");
    environment.agent_store = value == "True";
    if (value != "True" && value != "False") {
      reader.problem(absl::StrCat("TORCHELASTIC_USE_AGENT_STORE: got '", value,
                                  "', expected 'True' or 'False'"));
    } else if (environment.agent_store && !reader.is_set("MASTER_ADDR")) {
      reader.problem(
          "TORCHELASTIC_USE_AGENT_STORE: got 'True', although MASTER_ADDR, where torchrun's store "
          "is, is not set; unset it, as it is left over from another job");
    }
  }
  const bool is_somewhere = reader.is_set("TESSERA_STORE") || reader.is_set("MASTER_ADDR") ||
                            reader.is_set("MASTER_PORT");
  if (!is_somewhere) read_no_store(reader, environment);
}

bool read_verbose(VariableReader& reader) {
  const std::string value = reader.text("TESSERA_VERBOSE");
  if (reader.is_set("TESSERA_VERBOSE") && value != "0" && value != "1") {
    reader.problem(absl::StrCat("TESSERA_VERBOSE: got '", value, "', expected '0' or '1'"));
  }
  return value == "1";
}

void read_host(VariableReader& reader, Environment& environment) {
  constexpr size_t kLongest = 64;
  if (!reader.is_set("TESSERA_HOST")) return;
  environment.host = reader.text("TESSERA_HOST");
  const bool is_name = !environment.host.empty() && environment.host.size() <= kLongest &&
                       std::all_of(environment.host.begin(), environment.host.end(), [](char c) {
                         return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' ||
                                c == '_' || c == '-';
                       });
  if (!is_name) {
    reader.problem(absl::StrCat("TESSERA_HOST: got '", environment.host, "', expected up to ",
                                kLongest, " letters, digits, '.', '_' and '-'; unset it"));
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
  internal::VariableReader reader(lookup);
  Environment environment;
  if (needs.identity) internal::read_identity(reader, environment);
  if (needs.store) read_place(reader, environment);
  if (reader.is_set("TESSERA_JOB_TOKEN")) {
    environment.job_token = reader.text("TESSERA_JOB_TOKEN");
    if (environment.job_token.empty()) {
      reader.problem("TESSERA_JOB_TOKEN: got '', expected a secret text, or no such variable");
    }
  }
  read_host(reader, environment);
  environment.is_verbose = read_verbose(reader);
  environment.run_id = reader.text("TORCHELASTIC_RUN_ID");
  environment.attempt = reader.text("TORCHELASTIC_RESTART_COUNT");
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
  constexpr size_t kSchemeLength = 6;
  const std::string rest = is_tcp_url(url) ? url.substr(kSchemeLength) : "";
  const bool is_bracketed = absl::StartsWith(rest, "[");  // [::1]
  const size_t end = is_bracketed ? rest.find("]:") : rest.rfind(':');
  StoreAddress address;
  if (end != std::string::npos) {
    address.host = is_bracketed ? rest.substr(1, end - 1) : rest.substr(0, end);
    const std::string port = rest.substr(end + (is_bracketed ? 2 : 1));
    const bool is_number = !port.empty() && port.size() <= 5 &&
                           port.find_first_not_of("0123456789") == std::string::npos &&
                           absl::SimpleAtoi(port, &address.port);
    const bool is_name = is_bracketed || address.host.find_first_of(":/?[]") == std::string::npos;
    if (is_number && is_name && is_host(address.host) && address.port >= 1 &&
        address.port <= 65535) {
      return address;
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
  constexpr size_t kSchemeLength = 7;
  if (!absl::StartsWith(url, "file:///")) return bad("file:///directory/file or tcp://host:port");
  std::string path = url.substr(kSchemeLength);
  const size_t slash = path.rfind('/');
  if (slash == 0 || slash + 1 == path.size())
    return bad("file:///directory/file or tcp://host:port");
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

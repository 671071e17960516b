#include "tessera/environment.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

#include "tessera/core/process/launchers.h"
#include "tessera/core/process/variable_reader.h"

namespace tessera {
namespace {

using internal::VariableReader;

/// Returns true if `path` is a directory, not a link, that only this user can enter.
bool is_own_directory(const std::string& path) {
  constexpr mode_t kForOthers = 0077;
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid() && (status.st_mode & kForOthers) == 0;
}

/// Returns true if `text` can be the name or address of a host.
bool is_host(absl::string_view text) {
  return !text.empty() && text.find_first_of(" \t\r\n") == absl::string_view::npos;
}

void read_store_url(VariableReader& reader, Environment& environment) {
  const std::string url = environment.store_url = reader.text("TESSERA_STORE");
  const absl::Status status =
      is_tcp_url(url) ? parse_tcp_url(url).status() : parse_store_url(url).status();
  if (!reader.is_set("TESSERA_STORE") || status.ok()) return;
  reader.problem(absl::StrCat("TESSERA_STORE: ", std::string(status.message())));
}

void read_master(VariableReader& reader, Environment& environment) {
  constexpr const char* kAgentStore = "TORCHELASTIC_USE_AGENT_STORE";
  reader.whole_family({"MASTER_ADDR", "MASTER_PORT"}, "set both or neither");
  environment.master_port = reader.integer("MASTER_PORT", 1, 65535).value_or(0);
  environment.master_addr = reader.text("MASTER_ADDR");
  reader.expect("MASTER_ADDR", is_host(environment.master_addr), "a host name or an address");
  const std::string value = reader.text(kAgentStore);
  environment.agent_store = value == "True";
  const bool has_place = value != "True" || reader.is_set("MASTER_ADDR");
  reader.expect(kAgentStore, has_place && (value == "True" || value == "False"),
                "'True', and MASTER_ADDR set, where torchrun's store is, or 'False'; unset it if "
                "it is left over from another job");
}

/// Sets where srun's tasks on several hosts meet: on rank 0's host, at a port that each task
/// computes from the job number and the step number that SLURM gives.
void derive_master(const VariableReader& reader, Environment& environment) {
  constexpr int64_t kFirstPort = 20000, kPorts = 10000;  // below the ports that the kernel chooses
  const auto job = internal::whole_number(reader.text("SLURM_JOB_ID"));
  const auto step = internal::whole_number(reader.text("SLURM_STEP_ID"));
  if (environment.host_of_rank_0.empty() || !job || !step) return;
  const int64_t port = kFirstPort + (*job % kPorts * 7 + *step % kPorts) % kPorts;
  environment.master_addr = environment.host_of_rank_0;
  environment.master_port = static_cast<int>(port);
}

/// Called if no variable sets a meeting place. A world of one rank needs none, nor do a scheduler's
/// ranks on one host. A scheduler's ranks on several hosts get a place by derive_master().
/// Otherwise adds a problem.
void read_no_store(VariableReader& reader, Environment& environment) {
  std::string size = absl::StrCat(environment.world_size);
  if (reader.has_problems()) size = reader.text("WORLD_SIZE", size);
  if (size == "1" || (environment.is_of_scheduler() && environment.is_one_host())) return;
  if (environment.is_of_scheduler()) derive_master(reader, environment);
  if (!environment.master_addr.empty()) return;
  reader.problem(absl::StrCat(
      "TESSERA_STORE, MASTER_ADDR, MASTER_PORT: not set, expected one place where ", size,
      " ranks meet; start the program with tessera-run on one host, or set MASTER_ADDR (rank 0's "
      "host) and MASTER_PORT; ranks of mpirun or srun on CPUs need none: set backend 'mpi'"));
}

void read_place(VariableReader& reader, Environment& environment) {
  if (environment.rank_variable == "TESSERA_WORLD") return;
  read_store_url(reader, environment);
  read_master(reader, environment);
  const bool is_somewhere = reader.is_set("TESSERA_STORE") || reader.is_set("MASTER_ADDR") ||
                            reader.is_set("MASTER_PORT");
  if (!is_somewhere) read_no_store(reader, environment);
}

/// Reads the variables other than those for the rank's identity and the meeting place.
void read_rest(VariableReader& reader, Environment& environment) {
  constexpr size_t kLongest = 64;
  constexpr const char* kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  const std::string verbose = reader.text("TESSERA_VERBOSE");
  environment.is_verbose = verbose == "1";
  reader.expect("TESSERA_VERBOSE", verbose == "0" || verbose == "1", "'0' or '1'");
  const std::string token = environment.job_token = reader.text("TESSERA_JOB_TOKEN");
  reader.expect("TESSERA_JOB_TOKEN", !token.empty(), "a secret text, or no such variable");
  const std::string host = environment.host = reader.text("TESSERA_HOST");
  const bool is_name = host.find_first_not_of(kLetters) == std::string::npos;
  reader.expect("TESSERA_HOST", is_name && !host.empty() && host.size() <= kLongest,
                absl::StrCat("up to ", kLongest, " letters, digits, '.', '_' and '-'; unset it"));
  environment.run_id = reader.text("TORCHELASTIC_RUN_ID");
  environment.attempt = reader.text("TORCHELASTIC_RESTART_COUNT");
}

}  // namespace

std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

absl::StatusOr<Environment> read_environment(const EnvironmentLookup& lookup,
                                             EnvironmentNeeds needs) {
  VariableReader reader(lookup);
  Environment environment = needs.identity ? internal::read_identity(reader) : Environment();
  if (needs.store) read_place(reader, environment);
  read_rest(reader, environment);
  if (reader.has_problems()) return reader.error();
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
  const bool is_named = absl::StrContains(environment.launcher, environment.rank_variable);
  if (!is_named) absl::StrAppend(&text, " (", environment.rank_variable, ")");
  if (!environment.job_id.empty()) absl::StrAppend(&text, ", job ", environment.job_id);
  if (environment.host_of_rank_0.empty()) return text;
  return absl::StrCat(text, ", rank 0 on ", environment.host_of_rank_0);
}

bool is_tcp_url(const std::string& url) { return absl::StartsWith(url, "tcp://"); }

absl::StatusOr<StoreAddress> parse_tcp_url(const std::string& url) {
  const size_t colon = url.rfind(':');
  const std::string digits = url.substr(colon + 1);  // the whole text if there is no colon
  const auto port = internal::whole_number(digits, 1, 65535);
  absl::string_view host = absl::string_view(url).substr(0, colon);
  const bool is_tcp = absl::ConsumePrefix(&host, "tcp://");
  const bool is_bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");  // [::1]
  if (is_bracketed) host = host.substr(1, host.size() - 2);
  const bool is_name = host.find_first_of(is_bracketed ? "[]" : ":/?[]") == absl::string_view::npos;
  if (is_tcp && port && digits.size() <= 5 && is_name && is_host(host)) {
    return StoreAddress{std::string(host), static_cast<int>(*port)};
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
    return bad("file:///directory/file, a socket of one host, or tcp://host:port");
  }
  const std::string directory = path.substr(0, slash);
  if (is_own_directory(directory)) return path;
  return bad(directory,
             " to be a directory, and no link to one, that belongs to this user and is closed to "
             "others; make a directory of your own and name a file in it: mkdir -m 700 "
             "/tmp/tessera-",
             ::geteuid());
}

}  // namespace tessera

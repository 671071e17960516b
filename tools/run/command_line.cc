#include "tessera/tools/run/command_line.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tessera/core/launch/worker_environment.h"
#include "tessera/tools/run/visible_gpus.h"

namespace tessera::internal {
namespace {

constexpr std::string_view kOneHostOnly =
    "one host only; across hosts start one process per rank with mpirun or srun, or on GPUs with "
    "torchrun (docs/hosts.md)";

struct Parse {
  CommandLine result;
  int core_count;
  const std::vector<std::string>& inherited;
  std::set<std::string> seen = {};
  std::vector<std::string> problems = {};
  /// The values as given, until the number of ranks is known.
  struct Streams {
    std::string name;
    std::string value = "0";
  };
  Streams redirects = {"--redirects"};
  Streams tees = {"--tee"};
};

/// A flag without help text exists only to be refused by name. `apply` gets the name under which
/// the value was given: "--nnodes" or "PET_NNODES".
struct Flag {
  std::string_view name;
  std::string_view value;  // the value's name in the help; empty: the flag takes no value
  std::string_view help;
  void (*apply)(const std::string& name, const std::string& value, Parse& parse);
};

void refuse_hosts(const std::string& name, const std::string& value, Parse& parse) {
  parse.problems.push_back(
      absl::StrCat(name, " ", value, " is refused: ", std::string(kOneHostOnly)));
}

bool is_digits(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return c >= '0' && c <= '9'; });
}

void expect(const std::string& name, const std::string& value, const std::string& expected,
            Parse& parse) {
  parse.problems.push_back(absl::StrCat(name, ": got '", value, "', expected ", expected));
}

void set_worker_count(const std::string& name, const std::string& value, Parse& parse) {
  int count = 0;
  if (value == "auto") {
    count = std::clamp(parse.core_count, 1, kMaxWorkers);
  } else if (value == "gpu") {
    count = std::min(count_visible_gpus(parse.inherited), kMaxWorkers);
    if (count == 0) {
      return expect(name, value,
                    "a GPU that this process may use, but CUDA_VISIBLE_DEVICES names none, or "
                    "there is no /dev/nvidia0; give a number of ranks",
                    parse);
    }
  } else if (!is_digits(value) || !absl::SimpleAtoi(value, &count) || count < 1 ||
             count > kMaxWorkers) {
    return expect(name, value,
                  absl::StrCat("an integer from 1 to ", kMaxWorkers, ", 'auto' or 'gpu'"), parse);
  }
  parse.result.worker_count = count;
}

template <int64_t CommandLine::*milliseconds>
void set_seconds(const std::string& name, const std::string& value, Parse& parse) {
  constexpr double kMaxSeconds = 86400;
  const bool plain = !value.empty() && std::all_of(value.begin(), value.end(), [](unsigned char c) {
    return (c >= '0' && c <= '9') || c == '.';
  });
  double seconds = 0;
  if (!plain || !absl::SimpleAtod(value, &seconds) || seconds > kMaxSeconds) {
    return expect(name, value, "a number of seconds from 0 to 86400", parse);
  }
  parse.result.*milliseconds = std::llround(seconds * 1000);
}

template <bool CommandLine::*flag>
void set(const std::string&, const std::string&, Parse& parse) {
  parse.result.*flag = true;
}

template <Parse::Streams Parse::*streams>
void set_streams(const std::string& name, const std::string& value, Parse& parse) {
  parse.*streams = {name, value};
}

void set_max_restarts(const std::string& name, const std::string& value, Parse& parse) {
  if (!is_digits(value) || !absl::SimpleAtoi(value, &parse.result.max_restarts)) {
    expect(name, value, "a whole number of restarts, from 0", parse);
  }
}

void set_log_dir(const std::string& name, const std::string& value, Parse& parse) {
  std::error_code error;
  parse.result.log_dir = std::filesystem::absolute(value, error).string();
  if (value.empty() || error) expect(name, value, "a directory", parse);
}

void set_nnodes(const std::string& name, const std::string& value, Parse& parse) {
  if (value == "1" || value == "1:1") return;
  if (absl::StartsWith(name, "--")) return refuse_hosts(name, value, parse);
  expect(name, value,
         "1 or none: tessera-run starts ranks on one host, and each of these nodes would train "
         "alone; start the program by mpirun or srun, or, if it is left over from another job: "
         "env -u PET_NNODES tessera-run ...",
         parse);
}

/// Returns which streams of each worker go into files, from "3", or "0:3,1:1" for single ranks.
std::vector<int> read_streams(const Parse::Streams& given, Parse& parse) {
  const auto& [name, value] = given;
  const int workers = parse.result.worker_count;
  std::vector<int> streams(static_cast<size_t>(workers), 0);
  const auto is_choice = [](const std::string& text) {
    return text.size() == 1 && text[0] >= '0' && text[0] <= '3';
  };
  if (is_choice(value)) {
    std::fill(streams.begin(), streams.end(), value[0] - '0');
    return streams;
  }
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(value, ','))) {
    const std::vector<std::string> fields = absl::StrSplit(part, ':');
    int rank = 0;
    if (fields.size() != 2 || !is_digits(fields[0]) || !absl::SimpleAtoi(fields[0], &rank) ||
        rank >= workers || !is_choice(fields[1])) {
      expect(name, value,
             absl::StrCat("0 (none), 1 (stdout), 2 (stderr) or 3 (both), or a list of ranks from 0 "
                          "to ",
                          workers - 1, " as in 0:3,1:1"),
             parse);
      break;
    }
    streams[static_cast<size_t>(rank)] = fields[1][0] - '0';
  }
  return streams;
}

constexpr Flag kFlags[] = {
    {"standalone", "", "One host, no TCP port. The only mode there is, so it may be left out.",
     [](const std::string&, const std::string&, Parse&) {}},
    {"nproc-per-node", "N|auto|gpu",
     "Ranks to start (default 1); auto: one for each core that this process may use.",
     set_worker_count},
    {"max-restarts", "N",
     "When a rank fails, start all again; at most N times until a newer step is saved.",
     set_max_restarts},
    {"backoff-seconds", "S", "Pause before a restart (default 1): S, 2 S, 4 S, up to 30.",
     set_seconds<&CommandLine::backoff_ms>},
    {"log-dir", "DIR", "Keep files of each attempt and rank: DIR/attempt_0/0 and so on.",
     set_log_dir},
    {"redirects", "WHAT",
     "Write stdout (1), stderr (2) or both (3) into files there; 0:3,2:1 by rank.",
     set_streams<&Parse::redirects>},
    {"tee", "WHAT", "The same, and print them, too.", set_streams<&Parse::tees>},
    {"grace-seconds", "S",
     "When the job is ended early: seconds between SIGTERM and SIGKILL (default 20).",
     set_seconds<&CommandLine::grace_ms>},
    {"heartbeat-timeout", "S",
     "A rank that begins and finishes no step and no call for S seconds is dead (default: off).",
     set_seconds<&CommandLine::heartbeat_ms>},
    {"supervise", "",
     "The program starts ranks itself (mpirun, srun, docker run): it is one worker.",
     set<&CommandLine::supervise>},
    {"status", "",
     "Show what the ranks of a job do: tessera-run --status [JOB], the launcher's pid.",
     set<&CommandLine::status>},
    {"json", "", "With --status: one JSON object.", set<&CommandLine::json>},
    {"nnodes", "1", "Accepted for torchrun's sake; only 1 is possible.", set_nnodes},
    {"help", "", "Print this text.", set<&CommandLine::help>},
    {"version", "", "Print the version.", set<&CommandLine::version>},
    {"node-rank", "R", "", refuse_hosts},
    {"rdzv-backend", "B", "", refuse_hosts},
    {"rdzv-endpoint", "E", "", refuse_hosts},
    {"rdzv-id", "I", "", refuse_hosts},
    {"rdzv-conf", "C", "", refuse_hosts},
    {"master-addr", "A", "", refuse_hosts},
    {"master-port", "P", "", refuse_hosts},
    {"local-addr", "A", "", refuse_hosts},
};

const Flag* find_flag(const std::string& name) {
  for (const Flag& flag : kFlags) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

/// Reads the flag at `arguments[at]`; returns the index of the next unread argument.
size_t read_flag(const std::vector<std::string>& arguments, size_t at, Parse& parse) {
  const std::string& argument = arguments[at];
  const size_t equals = argument.find('=');
  const bool has_value = equals != std::string::npos;
  std::string name = argument.substr(0, equals);
  for (const auto& [letter, flag] :
       {std::pair("-h", "--help"), {"-r", "--redirects"}, {"-t", "--tee"}}) {
    if (name == letter) name = flag;
  }
  // torchrun accepts both '_' and '-' in flags.
  std::replace(name.begin(), name.end(), '_', '-');
  const Flag* flag = name.rfind("--", 0) == 0 ? find_flag(name.substr(2)) : nullptr;
  if (flag == nullptr) {
    parse.problems.push_back(absl::StrCat("unknown flag ", argument.substr(0, equals)));
    return at + 1;
  }
  if (!parse.seen.insert(name).second)
    parse.problems.push_back(absl::StrCat(name, " is given twice"));
  if (flag->value.empty()) {
    if (has_value) parse.problems.push_back(absl::StrCat(name, " takes no value"));
    flag->apply(name, "", parse);
    return at + 1;
  }
  if (has_value) {
    flag->apply(name, argument.substr(equals + 1), parse);
    return at + 1;
  }
  if (at + 1 == arguments.size()) {
    parse.problems.push_back(absl::StrCat(name, " needs a value"));
    return at + 1;
  }
  flag->apply(name, arguments[at + 1], parse);
  return at + 2;
}

/// Reads the variables that torchrun has for its flags. A flag takes precedence.
void read_variables(Parse& parse) {
  for (const Flag& flag : kFlags) {
    const std::string name(flag.name);
    if (flag.value.empty() || flag.help.empty() || parse.seen.count("--" + name) != 0) continue;
    const std::string variable =
        "PET_" + absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}}));
    const std::string value = value_of(parse.inherited, variable);
    if (!value.empty()) flag.apply(variable, value, parse);
  }
}

/// Sets the job that --status shows.
void set_job(const std::string& value, Parse& parse) {
  int pid = 0;
  if (parse.result.status_job) {
    parse.problems.push_back("--status takes one job");
  } else if (!is_digits(value) || !absl::SimpleAtoi(value, &pid) || pid < 1) {
    expect("--status", value, "the pid of a launcher, as in --status 4711", parse);
  }
  parse.result.status_job = pid;
}

/// Returns true if the request needs no program; adds the problems of such a request.
bool is_status(Parse& parse) {
  if (!parse.result.status) {
    if (parse.result.json) parse.problems.push_back("--json goes with --status");
    return false;
  }
  for (const std::string& flag : parse.seen) {
    if (flag == "--status" || flag == "--json") continue;
    parse.problems.push_back(absl::StrCat(flag, " and --status: got both, expected one of them"));
  }
  return true;
}

/// Checks what depends on several flags, and completes the result.
void finish(Parse& parse) {
  parse.result.redirects = read_streams(parse.redirects, parse);
  parse.result.tees = read_streams(parse.tees, parse);
  for (const auto& [name, value] : {parse.redirects, parse.tees}) {
    if (value == "0" || !parse.result.log_dir.empty()) continue;
    parse.problems.push_back(absl::StrCat(name, " needs --log-dir, the directory for the files"));
  }
  if (parse.result.supervise && parse.seen.count("--nproc-per-node") != 0) {
    parse.problems.push_back(
        "--supervise and --nproc-per-node: got both, expected one: a command that is supervised "
        "starts its ranks itself");
  }
}

}  // namespace

absl::StatusOr<CommandLine> parse_command_line(const std::vector<std::string>& arguments,
                                               int core_count,
                                               const std::vector<std::string>& inherited) {
  Parse parse{{}, core_count, inherited};
  size_t at = 0;
  while (at < arguments.size()) {
    const bool is_flag = arguments[at].size() > 1 && arguments[at][0] == '-';
    if (!is_flag && parse.result.status) {
      set_job(arguments[at++], parse);
      continue;
    }
    if (!is_flag) break;
    if (arguments[at] == "--") {
      ++at;
      break;
    }
    at = read_flag(arguments, at, parse);
  }
  if (parse.result.help || parse.result.version) return parse.result;
  if (is_status(parse)) {
    for (; at < arguments.size(); ++at) set_job(arguments[at], parse);
    if (parse.problems.empty()) return parse.result;
    return absl::InvalidArgumentError(absl::StrJoin(parse.problems, "\n"));
  }
  if (!parse.result.supervise) read_variables(parse);
  finish(parse);
  parse.result.program.assign(arguments.begin() + static_cast<std::ptrdiff_t>(at), arguments.end());
  if (parse.result.program.empty()) {
    parse.problems.push_back("no program is given");
  } else if (parse.result.program[0].empty()) {
    parse.problems.push_back("the name of the program is empty");
  }
  if (!parse.problems.empty()) {
    return absl::InvalidArgumentError(absl::StrJoin(parse.problems, "\n"));
  }
  return parse.result;
}

std::string help_text() {
  std::string text =
      "Usage: tessera-run [flags] [--] program [arguments...]\n"
      "       tessera-run --status [JOB] [--json]\n"
      "Starts the program once per rank on this host, prefixes its output with [rank], and ends\n"
      "all ranks when one fails. Everything after the program's name belongs to the program.\n\n"
      "  tessera-run --standalone --nproc-per-node 2 -- ./train --strategy zero3\n\n"
      "Flags, for those with a value also variables (PET_MAX_RESTARTS):\n";
  for (const Flag& flag : kFlags) {
    if (flag.help.empty()) continue;
    std::string left = absl::StrCat("  --", std::string(flag.name));
    if (!flag.value.empty()) absl::StrAppend(&left, " ", std::string(flag.value));
    left.resize(std::max<size_t>(left.size() + 2, 32), ' ');
    absl::StrAppend(&text, left, std::string(flag.help), "\n");
  }
  absl::StrAppend(
      &text,
      "\nExit code: 0 if every rank returned 0; else that of the rank that failed first\n"
      "(128 + signal for a signal); 64 bad usage, 71 system error, 73 no directory for\n"
      "the store or the logs, 126 program cannot be run, 127 program not found.\n"
      "\n--status prints a table, on a terminal again every second until the job ends. Its ratio\n"
      "is the time per step in which a rank does not wait for others, over the median of all\n"
      "ranks: 3 is a rank that holds up the others. Exit code: 0; 64 if there are several jobs,\n"
      "which are listed; 69 if there is none, or it cannot be looked at.\n");
  return text;
}

}  // namespace tessera::internal

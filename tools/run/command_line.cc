#include "tessera/tools/run/command_line.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::internal {
namespace {

constexpr std::string_view kOneHostOnly =
    "one host only; across hosts start one process per rank with mpirun or srun, or on GPUs with "
    "torchrun (docs/hosts.md)";

struct Parse {
  CommandLine result;
  int core_count;
  std::vector<std::string> problems;
};

/// A flag without help text is known only so that it can be refused by name.
struct Flag {
  std::string_view name;
  std::string_view value;  // what the help calls its value; empty: the flag takes none
  std::string_view help;
  void (*apply)(const Flag& flag, const std::string& value, Parse& parse);
};

void refuse_hosts(const Flag& flag, const std::string& value, Parse& parse) {
  parse.problems.push_back(absl::StrCat("--", std::string(flag.name), " ", value,
                                        " is refused: ", std::string(kOneHostOnly)));
}

void refuse_restarts(const Flag& flag, const std::string& value, Parse& parse) {
  if (value == "0") return;
  parse.problems.push_back(absl::StrCat("--", std::string(flag.name), " ", value,
                                        " is refused: restarting a job is not built yet; start it "
                                        "again from the outside"));
}

bool is_digits(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return c >= '0' && c <= '9'; });
}

void set_worker_count(const Flag&, const std::string& value, Parse& parse) {
  int count = 0;
  if (value == "auto") {
    count = std::clamp(parse.core_count, 1, kMaxWorkers);
  } else if (!is_digits(value) || !absl::SimpleAtoi(value, &count) || count < 1 ||
             count > kMaxWorkers) {
    parse.problems.push_back(absl::StrCat("--nproc-per-node: got '", value,
                                          "', expected an integer from 1 to ", kMaxWorkers,
                                          " or 'auto'"));
    return;
  }
  parse.result.worker_count = count;
}

void set_grace(const Flag&, const std::string& value, Parse& parse) {
  constexpr double kMaxSeconds = 86400;
  const bool plain = !value.empty() && std::all_of(value.begin(), value.end(), [](unsigned char c) {
    return (c >= '0' && c <= '9') || c == '.';
  });
  double seconds = 0;
  if (!plain || !absl::SimpleAtod(value, &seconds) || seconds > kMaxSeconds) {
    parse.problems.push_back(absl::StrCat("--grace-seconds: got '", value,
                                          "', expected a number of seconds from 0 to 86400"));
    return;
  }
  parse.result.grace_ms = std::llround(seconds * 1000);
}

void set_nnodes(const Flag& flag, const std::string& value, Parse& parse) {
  if (value != "1" && value != "1:1") refuse_hosts(flag, value, parse);
}

constexpr Flag kFlags[] = {
    {"standalone", "", "One host, no TCP port. The only mode there is, so it may be left out.",
     [](const Flag&, const std::string&, Parse&) {}},
    {"nproc-per-node", "N|auto",
     "Ranks to start (default 1); auto: one for each core that this process may use.",
     set_worker_count},
    {"grace-seconds", "S",
     "When the job is ended early: seconds between SIGTERM and SIGKILL (default 20).", set_grace},
    {"nnodes", "1", "Accepted for torchrun's sake; only 1 is possible.", set_nnodes},
    {"help", "", "Print this text.",
     [](const Flag&, const std::string&, Parse& parse) { parse.result.help = true; }},
    {"version", "", "Print the version.",
     [](const Flag&, const std::string&, Parse& parse) { parse.result.version = true; }},
    {"node-rank", "R", "", refuse_hosts},
    {"rdzv-backend", "B", "", refuse_hosts},
    {"rdzv-endpoint", "E", "", refuse_hosts},
    {"rdzv-id", "I", "", refuse_hosts},
    {"rdzv-conf", "C", "", refuse_hosts},
    {"master-addr", "A", "", refuse_hosts},
    {"master-port", "P", "", refuse_hosts},
    {"local-addr", "A", "", refuse_hosts},
    {"max-restarts", "N", "", refuse_restarts},
};

const Flag* find_flag(const std::string& name) {
  for (const Flag& flag : kFlags) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

/// Reads the flag at `arguments[at]`; returns the index of the next unread argument.
size_t read_flag(const std::vector<std::string>& arguments, size_t at, std::set<std::string>& seen,
                 Parse& parse) {
  const std::string& argument = arguments[at];
  const size_t equals = argument.find('=');
  const bool has_value = equals != std::string::npos;
  std::string name = argument.substr(0, equals);
  if (name == "-h") name = "--help";
  // torchrun spells its flags both ways.
  std::replace(name.begin(), name.end(), '_', '-');
  const Flag* flag = name.rfind("--", 0) == 0 ? find_flag(name.substr(2)) : nullptr;
  if (flag == nullptr) {
    parse.problems.push_back(absl::StrCat("unknown flag ", argument.substr(0, equals)));
    return at + 1;
  }
  if (!seen.insert(name).second) parse.problems.push_back(absl::StrCat(name, " is given twice"));
  if (flag->value.empty()) {
    if (has_value) parse.problems.push_back(absl::StrCat(name, " takes no value"));
    flag->apply(*flag, "", parse);
    return at + 1;
  }
  if (has_value) {
    flag->apply(*flag, argument.substr(equals + 1), parse);
    return at + 1;
  }
  if (at + 1 == arguments.size()) {
    parse.problems.push_back(absl::StrCat(name, " needs a value"));
    return at + 1;
  }
  flag->apply(*flag, arguments[at + 1], parse);
  return at + 2;
}

}  // namespace

absl::StatusOr<CommandLine> parse_command_line(const std::vector<std::string>& arguments,
                                               int core_count) {
  Parse parse{{}, core_count, {}};
  std::set<std::string> seen;
  size_t at = 0;
  while (at < arguments.size() && arguments[at].size() > 1 && arguments[at][0] == '-') {
    if (arguments[at] == "--") {
      ++at;
      break;
    }
    at = read_flag(arguments, at, seen, parse);
  }
  if (parse.result.help || parse.result.version) return parse.result;
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
      "Starts the program once per rank on this host, prefixes its output with [rank], and ends\n"
      "all ranks when one fails. Everything after the program's name belongs to the program.\n\n"
      "  tessera-run --standalone --nproc-per-node 2 -- ./train --strategy zero3\n\n"
      "Flags:\n";
  for (const Flag& flag : kFlags) {
    if (flag.help.empty()) continue;
    std::string left = absl::StrCat("  --", std::string(flag.name));
    if (!flag.value.empty()) absl::StrAppend(&left, " ", std::string(flag.value));
    left.resize(std::max<size_t>(left.size() + 2, 28), ' ');
    absl::StrAppend(&text, left, std::string(flag.help), "\n");
  }
  absl::StrAppend(
      &text,
      "\nExit code: 0 if every rank returned 0; else that of the rank that failed first\n"
      "(128 + signal for a signal); 64 bad usage, 71 system error, 73 no directory for\n"
      "the store, 126 program cannot be run, 127 program not found.\n");
  return text;
}

}  // namespace tessera::internal

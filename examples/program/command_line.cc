#include "tessera/examples/program/command_line.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string_view>

#include <absl/flags/commandlineflag.h>
#include <absl/flags/reflection.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

namespace program {
namespace {

constexpr size_t kColumns = 80;

/// Wraps `text` into lines of at most kColumns that begin with `indent`.
std::string wrapped(const std::string& text, const std::string& indent) {
  std::string lines, line;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (!line.empty() && indent.size() + line.size() + 1 + word.size() > kColumns) {
      absl::StrAppend(&lines, indent, line, "\n");
      line.clear();
    }
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
  }
  return absl::StrCat(lines, indent, line, "\n");
}

std::string help(const About& about) {
  std::string text = absl::StrCat("usage: ", about.name, " [--flag=value ...]\n",
                                  wrapped(absl::StrCat(about.name, " ", about.summary), ""), "\n");
  for (const std::string& example : about.examples) absl::StrAppend(&text, "  ", example, "\n");
  absl::StrAppend(&text, "\nflags, with their defaults (in a name, - is as good as _):\n");
  std::map<std::string, const absl::CommandLineFlag*> by_name;
  for (const auto& [name, flag] : absl::GetAllFlags()) by_name.emplace(std::string(name), flag);
  for (const auto& [name, flag] : by_name) {
    const std::string value = flag->DefaultValue();
    absl::StrAppend(&text, "  --", name, value.empty() ? "" : "=", value, "\n",
                    wrapped(flag->Help(), "      "));
  }
  return absl::StrCat(text, "  --help, --version\n      print this, or the version, and end\n");
}

/// A flag of the command line and its value, or the reason why it is refused.
struct Setting {
  absl::CommandLineFlag* flag = nullptr;
  std::string value = {};
  std::string problem = {};
};

/// Finds the flag of this name, in which '-' means '_'; null if there is none.
absl::CommandLineFlag* find_flag(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return absl::FindCommandLineFlag(name);
}

/// Reads argv[at]; advances `at` if the value is the next argument.
Setting read_setting(const std::string& argument, int argc, char** argv, int& at) {
  if (argument.size() < 2 || argument[0] != '-') {
    return {.problem = absl::StrCat("got '", argument, "', expected flags only")};
  }
  const std::string body = argument.substr(argument[1] == '-' ? 2 : 1);
  const size_t equals = body.find('=');
  const std::string name = body.substr(0, equals);
  absl::CommandLineFlag* flag = find_flag(name);
  if (equals != std::string::npos && flag != nullptr) {
    return {.flag = flag, .value = body.substr(equals + 1)};
  }
  if (flag != nullptr && flag->IsOfType<bool>()) return {.flag = flag, .value = "true"};
  if (flag != nullptr && at + 1 < argc) return {.flag = flag, .value = argv[++at]};
  if (flag != nullptr) return {.problem = absl::StrCat("--", name, ": got no value")};
  if (equals == std::string::npos && name.rfind("no", 0) == 0) {
    flag = find_flag(name.substr(2));
    if (flag != nullptr && flag->IsOfType<bool>()) return {.flag = flag, .value = "false"};
  }
  return {.problem = absl::StrCat("no flag is called --", name)};
}

/// Returns the error line for a value that Abseil has refused with `error`. Abseil's prefix is
/// removed, because the line names the flag itself.
std::string problem_of(const Setting& setting, absl::string_view error) {
  const std::string name(setting.flag->Name());
  absl::ConsumePrefix(
      &error, absl::StrCat("Illegal value '", setting.value, "' specified for flag '", name, "'"));
  absl::ConsumePrefix(&error, "; ");
  return absl::StrCat("--", name, ": ",
                      error.empty() ? absl::StrCat("got '", setting.value, "'") : error);
}

int refuse(const About& about, const std::string& problem) {
  std::fprintf(stderr, "%s: %s; %s --help lists the flags\n", about.name.c_str(), problem.c_str(),
               about.name.c_str());
  return kUsageError;
}

}  // namespace

std::optional<int> read_command_line(const About& about, int argc, char** argv) {
  for (int at = 1; at < argc; ++at) {
    const std::string argument = argv[at];
    if (argument == "--help" || argument == "-help" || argument == "-h") {
      std::printf("%s", help(about).c_str());
      return 0;
    }
    if (argument == "--version" || argument == "-version") {
      std::printf("%s, of Tessera " TESSERA_VERSION "\n", about.name.c_str());
      return 0;
    }
    const Setting setting = read_setting(argument, argc, argv, at);
    if (!setting.problem.empty()) return refuse(about, setting.problem);
    std::string error;
    if (!setting.flag->ParseFrom(setting.value, &error)) {
      return refuse(about, problem_of(setting, error));
    }
  }
  return std::nullopt;
}

}  // namespace program

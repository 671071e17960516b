#pragma once

#include <optional>
#include <string>
#include <vector>

namespace program {

/// A program's name and description.
struct About {
  std::string name;
  std::string summary;                     ///< one sentence
  std::vector<std::string> examples = {};  ///< command lines
};

/// The exit code for a refused command line (EX_USAGE of sysexits.h).
inline constexpr int kUsageError = 64;

/// Sets the flags that the program's ABSL_FLAG lines define: --name=value, --name value, and --name
/// or --noname for a bool; '-' and '_' are the same in a name. Returns nullopt if the program
/// should go on, otherwise its exit code: 0 after --help (usage, examples, flags with their
/// defaults) or --version, printed to stdout; kUsageError after an argument that is no flag, an
/// unknown flag or a bad value, with one line on stderr.
std::optional<int> read_command_line(const About& about, int argc, char** argv);

}  // namespace program

#pragma once

#include <optional>
#include <string>
#include <vector>

namespace program {

/// What a program says of itself.
struct About {
  std::string name;
  std::string summary;                     ///< one sentence
  std::vector<std::string> examples = {};  ///< command lines
};

/// The exit code of a command line that is refused (EX_USAGE of sysexits.h).
inline constexpr int kUsageError = 64;

/// Sets the flags that the program's ABSL_FLAG lines define: --name=value, --name value, and --name
/// or --noname for a bool; '-' and '_' are one in a name. Returns nothing if the program is to go
/// on, else the code to end with: 0 after --help (usage, examples, flags with their defaults) or
/// --version, on stdout; kUsageError after an argument that is no flag, an unknown flag or a bad
/// value, one line on stderr.
std::optional<int> read_command_line(const About& about, int argc, char** argv);

}  // namespace program

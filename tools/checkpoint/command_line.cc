#include "tessera/tools/checkpoint/command_line.h"

#include <functional>

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>

#include "tessera/tools/checkpoint/commands.h"

namespace tessera::internal {

namespace {

constexpr int kNoCommand = 64;

struct Command {
  const char* name;
  const char* arguments;
  size_t count;
  const char* help;
  /// Returns true if no problem was found.
  std::function<absl::StatusOr<bool>(FileSystem&, const std::vector<std::string>&, std::FILE*)> run;
};

absl::StatusOr<bool> done(const absl::Status& status) {
  if (!status.ok()) return status;
  return true;
}

const std::vector<Command>& commands() {
  using Arguments = std::vector<std::string>;
  static const std::vector<Command> all = {
      {"info", "PATH", 1, "what a step is made of",
       [](FileSystem& files, const Arguments& arguments, std::FILE* out) {
         return done(print_info(files, arguments[0], out));
       }},
      {"verify", "PATH", 1, "reads every byte of a step, or of all steps of a run",
       [](FileSystem& files, const Arguments& arguments, std::FILE* out) {
         return verify_steps(files, arguments[0], out);
       }},
      {"diff", "PATH PATH", 2, "compares two steps, bit for bit, whatever ranks saved them",
       [](FileSystem& files, const Arguments& arguments, std::FILE* out) {
         return compare_steps(files, arguments[0], arguments[1], out);
       }},
      {"export", "PATH FILE", 2, "writes the model of a step as one plain safetensors file",
       [](FileSystem& files, const Arguments& arguments, std::FILE* out) {
         return done(export_model(files, arguments[0], arguments[1], out));
       }},
      {"import", "FILE DIRECTORY", 2,
       "makes step 0 of a new run from a safetensors file or an index",
       [](FileSystem& files, const Arguments& arguments, std::FILE* out) {
         return done(import_model(files, arguments[0], arguments[1], out));
       }},
  };
  return all;
}

std::string help_text() {
  std::string text =
      "Usage: tessera-checkpoint COMMAND ARGUMENTS\n\n"
      "Looks into checkpoints. PATH is a step (runs/a/step-100) or the directory of a run\n"
      "(runs/a), of which the newest step is meant.\n\n";
  for (const Command& command : commands()) {
    const std::string call = absl::StrCat(command.name, " ", command.arguments);
    absl::StrAppend(&text, "  ", call, std::string(24 - call.size(), ' '), command.help, "\n");
  }
  absl::StrAppend(&text,
                  "\nEnds with 0; 1 where steps are damaged or differ; 2 after an error.\n\n"
                  "Example: tessera-checkpoint export runs/a model.safetensors\n");
  return text;
}

int print(const std::string& text, std::FILE* out, std::FILE* err) {
  if (std::fputs(text.c_str(), out) >= 0 && std::fflush(out) == 0) return 0;
  std::fprintf(err, "tessera-checkpoint: cannot write the output\n");
  return 2;
}

}  // namespace

int run_checkpoint_command(FileSystem& files, const std::vector<std::string>& arguments,
                           std::FILE* out, std::FILE* err) {
  if (!arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h")) {
    return print(help_text(), out, err);
  }
  if (!arguments.empty() && arguments[0] == "--version") {
    return print("tessera-checkpoint, of Tessera " TESSERA_VERSION "\n", out, err);
  }
  for (const Command& command : commands()) {
    if (arguments.empty() || arguments[0] != command.name) continue;
    if (arguments.size() != command.count + 1) {
      std::fprintf(err, "tessera-checkpoint %s: got %zu arguments, expected %s\n", command.name,
                   arguments.size() - 1, command.arguments);
      return kNoCommand;
    }
    const absl::StatusOr<bool> is_well =
        command.run(files, {arguments.begin() + 1, arguments.end()}, out);
    if (!is_well.ok()) {
      std::fprintf(err, "tessera-checkpoint: %s\n",
                   std::string(is_well.status().message()).c_str());
      return 2;
    }
    if (std::fflush(out) != 0) {
      std::fprintf(err, "tessera-checkpoint: cannot write the output\n");
      return 2;
    }
    return *is_well ? 0 : 1;
  }
  std::fprintf(err,
               "tessera-checkpoint: got %s, expected a command; see tessera-checkpoint --help\n",
               arguments.empty() ? "none" : absl::StrCat("'", arguments[0], "'").c_str());
  return kNoCommand;
}

}  // namespace tessera::internal

#include "tessera/core/library/module_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/library/entry_points.h"

namespace tessera::internal {
namespace {

/// Returns the folder of the library or program that contains this code; "" if that is unknown.
std::filesystem::path own_folder() {
  Dl_info info;
  if (::dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

/// Returns the paths to try, in order.
std::vector<std::string> candidates(const char* file, const std::optional<std::string>& named) {
  if (named && !named->empty()) return {*named};
  std::vector<std::string> paths;
  std::error_code error;
  const auto try_in = [&](const std::filesystem::path& folder) {
    const std::filesystem::path path = (folder / file).lexically_normal();
    const bool is_new = std::find(paths.begin(), paths.end(), path) == paths.end();
    if (is_new && path.is_absolute() && std::filesystem::exists(path, error)) paths.push_back(path);
  };
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const char* beside : {".", "../lib", "../lib64"}) try_in(program.parent_path() / beside);
  try_in(own_folder());
  paths.emplace_back(file);
  return paths;
}

}  // namespace

absl::StatusOr<void*> open_module(const ModuleLibrary& module, const EnvironmentLookup& lookup) {
  const std::optional<std::string> named = lookup(module.variable);
  std::vector<std::string> failures;
  for (const std::string& path : candidates(module.file, named)) {
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return library;
    failures.push_back(loader_error());
  }
  const bool is_named = named && !named->empty();
  const std::string where =
      is_named ? absl::StrCat("as ", module.variable, " says")
               : "beside the program, in ../lib and ../lib64 from there and where the loader looks "
                 "(LD_LIBRARY_PATH, ldconfig)";
  return absl::NotFoundError(absl::StrCat("[", module.part, "] module: got none, looked for '",
                                          is_named ? *named : module.file, "' ", where, " (",
                                          absl::StrJoin(failures, "; "), "), expected ",
                                          module.what, "; ", module.remedy));
}

absl::Status other_interface(const ModuleLibrary& module, const std::string& path, int version,
                             int expected) {
  return absl::FailedPreconditionError(
      absl::StrCat("[", module.part, "] module: got interface ", version, " at '", path,
                   "', expected interface ", expected, "; ", module.remedy));
}

absl::Status require_none_missing(const ModuleLibrary& module, const std::string& path,
                                  const std::vector<std::string>& missing) {
  if (missing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("[", module.part, "] module: got '", path, "' without ",
                   absl::StrJoin(missing, ", "), ", expected ", module.what, "; ", module.remedy));
}

}  // namespace tessera::internal

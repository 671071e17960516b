#include "tessera/optim/cuda/api.h"

#include <dlfcn.h>

#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/entry_points.h"

namespace tessera::cuda {
namespace {

constexpr const char* kLibrary = "libtessera_cuda.so";
constexpr const char* kVariable = "TESSERA_CUDA_MODULE";
constexpr const char* kRemedy =
    "build Tessera where CMake finds nvcc (CUDA_HOME, or on the PATH; CMake says whether it did) "
    "or set TESSERA_CUDA_MODULE to the path of the libtessera_cuda.so of this version";

/// Paths to try; those that are no plain name are looked for nowhere else.
std::vector<std::string> candidates(const std::optional<std::string>& named) {
  if (named && !named->empty()) return {*named};
  std::vector<std::string> paths;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const std::filesystem::path folder = program.parent_path();
    for (const char* beside : {".", "../lib", "../lib64"}) {
      const std::filesystem::path path = (folder / beside / kLibrary).lexically_normal();
      if (std::filesystem::exists(path, error)) paths.push_back(path);
    }
  }
  paths.emplace_back(kLibrary);
  return paths;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Api>> load_api(const EnvironmentLookup& lookup) {
  const std::optional<std::string> named = lookup(kVariable);
  const bool is_named = named && !named->empty();
  void* library = nullptr;
  std::vector<std::string> failures;
  for (const std::string& path : candidates(named)) {
    library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    failures.push_back(loader_error());
  }
  if (library == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "[cuda] module: got none, looked for '", is_named ? *named : kLibrary, "' ",
        is_named ? "as TESSERA_CUDA_MODULE says"
                 : "beside the program, in ../lib and ../lib64 from there and where the loader "
                   "looks (LD_LIBRARY_PATH, ldconfig)",
        " (", absl::StrJoin(failures, "; "), "), expected Tessera's module for GPUs; ", kRemedy));
  }

  auto api = std::make_shared<Api>();
  api->path = path_of_library(library);
  EntryPoints entries(library);
  entries.require(api->interface_version, "tessera_cuda_interface_version");
  if (api->interface_version != nullptr) {
    // One of another version may lack entry points, too; its version says why.
    if (const int version = api->interface_version(); version != kInterfaceVersion) {
      return absl::FailedPreconditionError(
          absl::StrCat("[cuda] module: got interface ", version, " at '", api->path,
                       "', expected interface ", kInterfaceVersion, "; ", kRemedy));
    }
  }
  entries.require(api->error_text, "tessera_cuda_error_text");
  entries.require(api->zero, "tessera_cuda_zero");
  entries.require(api->accumulate, "tessera_cuda_accumulate");
  entries.require(api->cast, "tessera_cuda_cast");
  entries.require(api->count_non_finite, "tessera_cuda_count_non_finite");
  entries.require(api->add_squares, "tessera_cuda_add_squares");
  entries.require(api->normalize, "tessera_cuda_normalize");
  entries.require(api->decide, "tessera_cuda_decide");
  entries.require(api->update_loss_scale, "tessera_cuda_update_loss_scale");
  entries.require(api->advance, "tessera_cuda_advance");
  entries.require(api->adamw, "tessera_cuda_adamw");
  if (!entries.missing().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "[cuda] module: got '", api->path, "' without ", absl::StrJoin(entries.missing(), ", "),
        ", expected Tessera's module for GPUs; ", kRemedy));
  }
  return std::shared_ptr<const Api>(std::move(api));
}

}  // namespace tessera::cuda

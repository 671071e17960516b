#include "tessera/core/device/graph_api.h"

#include <dlfcn.h>

#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/headeronly/version.h>

#include "tessera/core/entry_points.h"

namespace tessera {
namespace {

constexpr const char* kLibrary = "libtessera_cuda_graph.so";
constexpr const char* kVariable = "TESSERA_CUDA_GRAPH_MODULE";
constexpr const char* kRemedy =
    "build Tessera where CMake finds the CUDA Toolkit's headers (CUDA_HOME; CMake says whether it "
    "did), with LibTorch " TORCH_VERSION
    ", or set TESSERA_CUDA_GRAPH_MODULE to the path of its libtessera_cuda_graph.so, or train "
    "without graphs";

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

absl::StatusOr<std::shared_ptr<const GraphApi>> load_graph_api(const EnvironmentLookup& lookup) {
  // Otherwise the loader would fetch some libtorch_cuda.so for the module, behind the checks.
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) {
    return absl::FailedPreconditionError(
        "[graph] module: got a process without LibTorch's CUDA half, expected it; call"
        " init_process_group({.device = at::kCUDA}) first");
  }
  const std::optional<std::string> named = lookup(kVariable);
  const bool is_named = named && !named->empty();
  void* library = nullptr;
  std::vector<std::string> failures;
  for (const std::string& path : candidates(named)) {
    // All symbols now: one that LibTorch lacks would end the process at its first use.
    library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    failures.push_back(loader_error());
  }
  if (library == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "[graph] module: got none, looked for '", is_named ? *named : kLibrary, "' ",
        is_named ? "as TESSERA_CUDA_GRAPH_MODULE says"
                 : "beside the program, in ../lib and ../lib64 from there and where the loader "
                   "looks (LD_LIBRARY_PATH, ldconfig)",
        " (", absl::StrJoin(failures, "; "), "), expected Tessera's module for CUDA graphs; ",
        kRemedy));
  }

  auto api = std::make_shared<GraphApi>();
  api->path = path_of_library(library);
  EntryPoints entries(library);
  entries.require(api->interface_version, "tessera_cuda_graph_interface_version");
  entries.require(api->torch_version, "tessera_cuda_graph_torch_version");
  if (api->interface_version != nullptr) {
    // One of another version may lack entry points, too; its version says why.
    const int version = api->interface_version();
    if (version != cuda_graph::kInterfaceVersion) {
      return absl::FailedPreconditionError(
          absl::StrCat("[graph] module: got interface ", version, " at '", api->path,
                       "', expected interface ", cuda_graph::kInterfaceVersion, "; ", kRemedy));
    }
  }
  if (api->torch_version != nullptr) {
    const std::string_view version = api->torch_version();
    if (version != TORCH_VERSION) {
      return absl::FailedPreconditionError(
          absl::StrCat("[graph] module: got '", api->path, "' for LibTorch ", api->torch_version(),
                       ", expected one for LibTorch " TORCH_VERSION "; ", kRemedy));
    }
  }
  entries.require(api->error_text, "tessera_cuda_graph_error_text");
  entries.require(api->make, "tessera_cuda_graph_make");
  entries.require(api->begin, "tessera_cuda_graph_begin");
  entries.require(api->end, "tessera_cuda_graph_end");
  entries.require(api->replay, "tessera_cuda_graph_replay");
  entries.require(api->destroy, "tessera_cuda_graph_destroy");
  if (!entries.missing().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "[graph] module: got '", api->path, "' without ", absl::StrJoin(entries.missing(), ", "),
        ", expected Tessera's module for CUDA graphs; ", kRemedy));
  }
  return std::shared_ptr<const GraphApi>(std::move(api));
}

}  // namespace tessera

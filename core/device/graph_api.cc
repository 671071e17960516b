#include "tessera/core/device/graph_api.h"

#include <string_view>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/headeronly/version.h>

#include "tessera/core/library/entry_points.h"
#include "tessera/core/library/module_library.h"

namespace tessera::internal {
namespace {

constexpr ModuleLibrary kModule = {
    .part = "graph",
    .file = "libtessera_cuda_graph.so",
    .variable = "TESSERA_CUDA_GRAPH_MODULE",
    .what = "Tessera's module for CUDA graphs",
    .remedy =
        "build Tessera where CMake finds the CUDA Toolkit's headers (CUDA_HOME; CMake says whether "
        "it did), with LibTorch " TORCH_VERSION
        ", or set TESSERA_CUDA_GRAPH_MODULE to the path of its libtessera_cuda_graph.so, or train "
        "without graphs"};

}  // namespace

absl::StatusOr<std::shared_ptr<const GraphApi>> load_graph_api(const EnvironmentLookup& lookup) {
  // If LibTorch's CUDA half is not loaded yet, opening the module would make the loader load
  // whichever libtorch_cuda.so it finds, without the checks that load_cuda_library() makes.
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) {
    return absl::FailedPreconditionError(
        "[graph] module: got a process without LibTorch's CUDA half, expected it; call"
        " init_process_group({.device = at::kCUDA}) first");
  }
  const absl::StatusOr<void*> library = open_module(kModule, lookup);
  if (!library.ok()) return library.status();

  auto api = std::make_shared<GraphApi>();
  api->path = path_of_library(*library);
  EntryPoints entries(*library);
  entries.require(api->interface_version, "tessera_cuda_graph_interface_version");
  entries.require(api->torch_version, "tessera_cuda_graph_torch_version");
  if (api->interface_version != nullptr) {
    // Check the version before missing entry points are reported: another version may be the reason
    // why they are missing.
    const int version = api->interface_version();
    if (version != cuda_graph::kInterfaceVersion) {
      return other_interface(kModule, api->path, version, cuda_graph::kInterfaceVersion);
    }
  }
  if (api->torch_version != nullptr) {
    const std::string_view version = api->torch_version();
    if (version != TORCH_VERSION) {
      return absl::FailedPreconditionError(
          absl::StrCat("[graph] module: got '", api->path, "' for LibTorch ", api->torch_version(),
                       ", expected one for LibTorch " TORCH_VERSION "; ", kModule.remedy));
    }
  }
  entries.require(api->error_text, "tessera_cuda_graph_error_text");
  entries.require(api->make, "tessera_cuda_graph_make");
  entries.require(api->begin, "tessera_cuda_graph_begin");
  entries.require(api->end, "tessera_cuda_graph_end");
  entries.require(api->replay, "tessera_cuda_graph_replay");
  entries.require(api->destroy, "tessera_cuda_graph_destroy");
  absl::Status complete = require_none_missing(kModule, api->path, entries.missing());
  if (!complete.ok()) return complete;
  return std::shared_ptr<const GraphApi>(std::move(api));
}

}  // namespace tessera::internal

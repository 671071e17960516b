#include "tessera/optim/cuda/api.h"

#include <utility>

#include "tessera/core/library/entry_points.h"
#include "tessera/core/library/module_library.h"

namespace tessera::internal::cuda {
namespace {

constexpr ModuleLibrary kModule = {
    .part = "cuda",
    .file = "libtessera_cuda.so",
    .variable = "TESSERA_CUDA_MODULE",
    .what = "Tessera's module for GPUs",
    .remedy =
        "build Tessera where CMake finds nvcc (CUDA_HOME, or on the PATH; CMake says whether it "
        "did) or set TESSERA_CUDA_MODULE to the path of the libtessera_cuda.so of this version"};

}  // namespace

absl::StatusOr<std::shared_ptr<const Api>> load_api(const EnvironmentLookup& lookup) {
  const absl::StatusOr<void*> library = open_module(kModule, lookup);
  if (!library.ok()) return library.status();

  auto api = std::make_shared<Api>();
  api->path = path_of_library(*library);
  EntryPoints entries(*library);
  entries.require(api->interface_version, "tessera_cuda_interface_version");
  if (api->interface_version != nullptr) {
    // The version is compared before the other entry points are looked up: a module of another
    // version may lack some of them, too, and then its version is the reason to report.
    if (const int version = api->interface_version(); version != kInterfaceVersion) {
      return other_interface(kModule, api->path, version, kInterfaceVersion);
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
  entries.require(api->update, "tessera_cuda_update");
  absl::Status complete = require_none_missing(kModule, api->path, entries.missing());
  if (!complete.ok()) return complete;
  return std::shared_ptr<const Api>(std::move(api));
}

}  // namespace tessera::internal::cuda

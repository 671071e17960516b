#pragma once

#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "tessera/core/device/graph_module/abi.h"
#include "tessera/environment.h"

namespace tessera::internal {

/// The entry points of one libtessera_cuda_graph.so; graph_module/abi.h says what each does. Never
/// unloaded.
struct GraphApi {
  std::string path;  ///< of the loaded module

  decltype(&cuda_graph::tessera_cuda_graph_interface_version) interface_version;
  decltype(&cuda_graph::tessera_cuda_graph_torch_version) torch_version;
  decltype(&cuda_graph::tessera_cuda_graph_error_text) error_text;
  decltype(&cuda_graph::tessera_cuda_graph_make) make;
  decltype(&cuda_graph::tessera_cuda_graph_begin) begin;
  decltype(&cuda_graph::tessera_cuda_graph_end) end;
  decltype(&cuda_graph::tessera_cuda_graph_replay) replay;
  decltype(&cuda_graph::tessera_cuda_graph_destroy) destroy;
};

/// Local. Opens the module. It takes at::cuda::CUDAGraph from LibTorch's CUDA half, so load that
/// first (load_cuda_library()). If TESSERA_CUDA_GRAPH_MODULE is set, opens that path and looks
/// nowhere else. Otherwise looks where open_module() does. Returns an error if there is no module,
/// if LibTorch's CUDA half is not loaded, if the module lacks entry points (the error lists all of
/// them), or if it was built for another version of this library or of LibTorch. The error says
/// what was looked for, where, and what to do.
absl::StatusOr<std::shared_ptr<const GraphApi>> load_graph_api(
    const EnvironmentLookup& lookup = process_environment);

}  // namespace tessera::internal

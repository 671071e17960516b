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

/// Local. Opens the module, which takes at::cuda::CUDAGraph from LibTorch's CUDA half; load that
/// first (load_cuda_library()). Looks for the module in this order: the path in
/// TESSERA_CUDA_GRAPH_MODULE, if it is set, and nowhere else; beside the program and in ../lib and
/// ../lib64 from there (build trees and installed prefixes); where the loader looks. The error says
/// what was looked for, where, and what to do: if there is no module, if LibTorch's CUDA half is
/// not loaded, if the module lacks entry points (all of them are listed), and if it was built for
/// another version of this library or of LibTorch.
absl::StatusOr<std::shared_ptr<const GraphApi>> load_graph_api(
    const EnvironmentLookup& lookup = process_environment);

}  // namespace tessera::internal

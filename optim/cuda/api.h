#pragma once

#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "tessera/environment.h"
#include "tessera/optim/cuda/abi.h"

namespace tessera::internal::cuda {

/// The entry points of one libtessera_cuda.so; abi.h says what each does. Never unloaded: kernels
/// may be in flight.
struct Api {
  std::string path;  ///< path of the library that was loaded

  decltype(&tessera_cuda_interface_version) interface_version;
  decltype(&tessera_cuda_error_text) error_text;
  decltype(&tessera_cuda_zero) zero;
  decltype(&tessera_cuda_accumulate) accumulate;
  decltype(&tessera_cuda_cast) cast;
  decltype(&tessera_cuda_count_non_finite) count_non_finite;
  decltype(&tessera_cuda_add_squares) add_squares;
  decltype(&tessera_cuda_normalize) normalize;
  decltype(&tessera_cuda_decide) decide;
  decltype(&tessera_cuda_update_loss_scale) update_loss_scale;
  decltype(&tessera_cuda_advance) advance;
  decltype(&tessera_cuda_update) update;
};

/// Opens the module, a library of about 2 MB, which brings its own CUDA runtime and does not touch
/// the driver before the first call. Local. If TESSERA_CUDA_MODULE is set, only that path is tried.
/// Otherwise the module is looked for beside the program, then in ../lib and ../lib64 from there
/// (build trees and installed prefixes), then where the loader looks. Returns an error if the
/// module is not found, if it lacks entry points (all of them are listed) or if it belongs to
/// another version of this library. The error says what was looked for, where, and what to do.
absl::StatusOr<std::shared_ptr<const Api>> load_api(
    const EnvironmentLookup& lookup = process_environment);

}  // namespace tessera::internal::cuda

#include "tessera/core/device/cuda_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <optional>
#include <system_error>
#include <typeinfo>
#include <vector>

#include <ATen/detail/CUDAHooksInterface.h>
#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/headeronly/version.h>

#include "tessera/core/library/entry_points.h"

namespace tessera::internal {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "TESSERA_CUDA_LIBRARIES";
constexpr const char* kLibrary = "libtorch_cuda.so";
constexpr const char* kCpuLibrary = "libtorch_cpu.so";
constexpr const char* kRemedy =
    "run cmake/bootstrap.sh --cuda, or set TESSERA_CUDA_LIBRARIES to the folder of the "
    "libtorch_cuda.so of LibTorch " TORCH_VERSION;
// Libraries that the CUDA half opens by their bare names when it needs them. The loader finds them
// only beside the CPU half, so open_at() opens them beforehand if they lie elsewhere.
constexpr const char* kOpenedLater[] = {"libcaffe2_nvrtc.so", "libtorch_cuda_linalg.so"};

constexpr int kInsufficientDriver = 35;  // cudaErrorInsufficientDriver

/// Returns the path of the loaded CPU half; "" if it is linked statically.
std::string cpu_library() {
  return path_of_library(::dlopen(kCpuLibrary, RTLD_LAZY | RTLD_NOLOAD));
}

/// Returns the error for the library at `path`, which the loader refused for `reason`.
std::string refusal(const std::string& path, const std::string& reason) {
  if (absl::StrContains(reason, "undefined symbol") || absl::StrContains(reason, "version `")) {
    return absl::StrCat("[cuda] library: got '", path, "', which does not fit '", cpu_library(),
                        "' (", reason, "), expected the CUDA half of LibTorch " TORCH_VERSION "; ",
                        kRemedy);
  }
  return absl::StrCat("[cuda] library: got '", path, "', which does not open (", reason,
                      "), expected it with all of NVIDIA's libraries that it needs; ", kRemedy);
}

/// Returns an error if the CPU half beside `path` is not the one that is loaded, else "". The
/// loader does not notice such a mismatch as long as it finds all symbols.
std::string mismatch(const fs::path& path) {
  const fs::path loaded = cpu_library();
  const fs::path beside = path.parent_path() / kCpuLibrary;
  std::error_code error;
  if (loaded.empty() || !fs::exists(beside, error) || fs::equivalent(beside, loaded, error)) {
    return "";
  }
  // The CUDA half does not say which version it belongs to. So compare the sizes of the two CPU
  // halves; they differ between builds.
  const auto loaded_bytes = fs::file_size(loaded, error);
  const auto beside_bytes = fs::file_size(beside, error);
  if (error || loaded_bytes == beside_bytes) return "";
  return absl::StrCat("[cuda] library: got '", path.string(), "', which belongs to the ",
                      kCpuLibrary, " beside it (", beside_bytes, " bytes), not to '",
                      loaded.string(), "' (", loaded_bytes,
                      " bytes), expected the CUDA half of LibTorch " TORCH_VERSION "; ", kRemedy);
}

/// Opens the library at `path`; returns nullopt if there is no such file.
std::optional<absl::StatusOr<void*>> open_at(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  const std::string other = mismatch(path);
  if (!other.empty()) return absl::FailedPreconditionError(other);
  // Resolves all symbols now: a missing one would end the process at its first use.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(refusal(path.string(), loader_error()));
  }
  if (path.parent_path() != fs::path(cpu_library()).parent_path()) {
    // Ignore failures: libcaffe2_nvrtc.so cannot be opened without a driver, and few programs need
    // any of these libraries.
    for (const char* name : kOpenedLater) {
      ::dlopen((path.parent_path() / name).c_str(), RTLD_LAZY | RTLD_LOCAL);
    }
  }
  return library;
}

absl::StatusOr<void*> open_in(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    if (auto opened = open_at(fs::path(folder) / kLibrary)) return *std::move(opened);
  }
  return absl::NotFoundError(
      absl::StrCat("[cuda] library: got none, looked for ", kLibrary, " in '",
                   absl::StrJoin(folders, "', '"), "' as ", kVariable,
                   " says, expected the CUDA half of LibTorch " TORCH_VERSION "; ", kRemedy));
}

absl::StatusOr<void*> open_anywhere() {
  const std::string cpu = cpu_library();
  if (!cpu.empty()) {
    if (auto opened = open_at(fs::path(cpu).parent_path() / kLibrary)) return *std::move(opened);
  }
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) {
    const std::string other = mismatch(path_of_library(library));
    if (!other.empty()) return absl::FailedPreconditionError(other);
    return library;
  }
  const std::string reason = loader_error();
  // The loader's message begins with the library that was not found. If that is kLibrary, there is
  // no CUDA half at all; otherwise the CUDA half lacks another library.
  if (!absl::StartsWith(reason, kLibrary) ||
      !absl::StrContains(reason, "cannot open shared object")) {
    return absl::FailedPreconditionError(refusal(kLibrary, reason));
  }
  return absl::NotFoundError(
      absl::StrCat("[cuda] library: got none, looked for ", kLibrary, " beside '", cpu,
                   "' and where the loader looks (LD_LIBRARY_PATH, ldconfig; ", reason,
                   "), expected the CUDA half of LibTorch " TORCH_VERSION "; ", kRemedy));
}

/// Returns "13.0" for 13000, CUDA's encoding of versions.
std::string cuda_version(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

/// Returns why no GPU can be used, or "". Asks the CUDA runtime, because LibTorch returns only the
/// number of GPUs.
std::string problem_of_driver(void* library) {
  int (*count_devices)(int*) = nullptr;
  int (*driver_version)(int*) = nullptr;
  int (*runtime_version)(int*) = nullptr;
  const char* (*error_string)(int) = nullptr;
  EntryPoints runtime(library);
  runtime.require(count_devices, "cudaGetDeviceCount");
  runtime.require(driver_version, "cudaDriverGetVersion");
  runtime.require(runtime_version, "cudaRuntimeGetVersion");
  runtime.require(error_string, "cudaGetErrorString");
  int count = 0;
  if (runtime.missing().empty()) {
    const int status = count_devices(&count);
    if (status == 0 && count > 0) return "";
    int driver = 0;
    int needed = 0;
    driver_version(&driver);
    runtime_version(&needed);
    if (driver == 0) {
      return absl::StrCat(
          "[cuda] driver: got none, expected NVIDIA's driver (libcuda.so.1) for CUDA ",
          cuda_version(needed), "; run on a machine with a GPU and its driver, or on the CPU");
    }
    if (status == kInsufficientDriver) {
      return absl::StrCat("[cuda] driver: got one for CUDA ", cuda_version(driver),
                          ", expected one for ", cuda_version(needed),
                          "; update the driver, or use a LibTorch for the older CUDA");
    }
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return absl::StrCat("[cuda] devices: got none (", error_string(status), "; ",
                        visible == nullptr
                            ? std::string("CUDA_VISIBLE_DEVICES is not set")
                            : absl::StrCat("CUDA_VISIBLE_DEVICES is '", visible, "'"),
                        "), expected at least one GPU; run on a machine with a GPU, or on the CPU");
  }
  if (c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->deviceCount() > 0) return "";
  return "[cuda] devices: got none, expected at least one GPU; run on a machine with a GPU, or on"
         " the CPU";
}

/// Returns true if LibTorch had decided, before the CUDA half was loaded, that there is no CUDA.
bool came_too_late() {
  // Call this only after the CUDA half is loaded, because the check itself makes LibTorch decide.
  return typeid(at::detail::getCUDAHooks()) == typeid(at::CUDAHooksInterface);
}

}  // namespace

absl::StatusOr<CudaLibrary> load_cuda_library(const EnvironmentLookup& lookup) {
  static std::mutex mutex;  // ranks that are threads call this at the same time
  const std::lock_guard<std::mutex> lock(mutex);

  void* library = nullptr;
  if (c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) {
    library = ::dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD);
  } else {
    const std::optional<std::string> named = lookup(kVariable);
    auto opened = named && !named->empty() ? open_in(absl::StrSplit(*named, ':', absl::SkipEmpty()))
                                           : open_anywhere();
    if (!opened.ok()) return opened.status();
    library = *opened;
  }
  CudaLibrary found;
  found.path = path_of_library(library);
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) {
    return absl::FailedPreconditionError(
        absl::StrCat("[cuda] library: got '", found.path,
                     "', which registers no CUDA device, expected the CUDA"
                     " half of LibTorch " TORCH_VERSION "; ",
                     kRemedy));
  }
  std::vector<std::string> problems;
  if (came_too_late()) {
    problems.push_back(absl::StrCat(
        "[cuda] library: got '", found.path,
        "' after LibTorch had been asked for CUDA"
        " (torch::cuda::is_available(), torch::manual_seed(), a first backward(), ...) and had"
        " decided for the life of this process that there is none, expected to be first; call"
        " init_process_group({.device = at::kCUDA}) at the start of the program"));
  }
  const std::string driver = problem_of_driver(library == nullptr ? RTLD_DEFAULT : library);
  if (!driver.empty()) problems.push_back(driver);
  if (!problems.empty()) return absl::FailedPreconditionError(absl::StrJoin(problems, "\n"));
  found.device_count = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->deviceCount();
  return found;
}

}  // namespace tessera::internal

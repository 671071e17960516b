#include "tessera/core/comm/nccl/api.h"

#include <dlfcn.h>

#include <optional>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/library/entry_points.h"

namespace tessera::internal::nccl {
namespace {

constexpr const char* kRemedy =
    "install NCCL 2.28 or newer (the package libnccl2, or the wheel nvidia-nccl-cu13) or set "
    "TESSERA_NCCL to the path of its libnccl.so.2";

/// Returns "2.28.9" for 22809.
std::string version_text(int version) {
  return absl::StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Api>> load_api(const EnvironmentLookup& lookup) {
  const std::optional<std::string> named = lookup("TESSERA_NCCL");
  const std::string wanted = named && !named->empty() ? *named : "libnccl.so.2";
  // Given only a file name, the loader returns the NCCL that LibTorch has loaded, if there is one.
  void* const library = ::dlopen(wanted.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::NotFoundError(absl::StrCat("[nccl] library: got none, looked for '", wanted, "' (",
                                            loader_error(), "), expected NCCL; ", kRemedy));
  }

  auto api = std::make_shared<Api>();
  api->path = path_of_library(library);
  EntryPoints entries(library);
  entries.require(api->get_version, "ncclGetVersion");
  // The version is checked first, because an older library may lack entry points, and its version
  // explains that.
  if (api->get_version != nullptr &&
      (api->get_version(&api->version) != Result::kSuccess || api->version < kOldestVersion)) {
    return absl::FailedPreconditionError(
        absl::StrCat("[nccl] library: got NCCL ", version_text(api->version), " at '", api->path,
                     "', expected ", version_text(kOldestVersion), " or newer; ", kRemedy));
  }
  entries.require(api->get_unique_id, "ncclGetUniqueId");
  entries.require(api->get_error_string, "ncclGetErrorString");
  entries.require(api->get_last_error, "ncclGetLastError");
  entries.require(api->comm_init_rank_config, "ncclCommInitRankConfig");
  entries.require(api->comm_split, "ncclCommSplit");
  entries.require(api->comm_finalize, "ncclCommFinalize");
  entries.require(api->comm_destroy, "ncclCommDestroy");
  entries.require(api->comm_abort, "ncclCommAbort");
  entries.require(api->comm_get_async_error, "ncclCommGetAsyncError");
  entries.require(api->group_start, "ncclGroupStart");
  entries.require(api->group_end, "ncclGroupEnd");
  entries.require(api->all_reduce, "ncclAllReduce");
  entries.require(api->reduce_scatter, "ncclReduceScatter");
  entries.require(api->all_gather, "ncclAllGather");
  entries.require(api->broadcast, "ncclBroadcast");
  entries.require(api->reduce, "ncclReduce");
  entries.require(api->send, "ncclSend");
  entries.require(api->recv, "ncclRecv");
  entries.require(api->mem_alloc, "ncclMemAlloc");
  entries.require(api->mem_free, "ncclMemFree");
  entries.require(api->comm_register, "ncclCommRegister");
  entries.require(api->comm_deregister, "ncclCommDeregister");
  entries.require(api->comm_window_register, "ncclCommWindowRegister");
  entries.require(api->comm_window_deregister, "ncclCommWindowDeregister");
  if (!entries.missing().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("[nccl] library: got '", api->path, "' without ",
                     absl::StrJoin(entries.missing(), ", "), ", expected NCCL; ", kRemedy));
  }
  return std::shared_ptr<const Api>(std::move(api));
}

}  // namespace tessera::internal::nccl

#include "tessera/core/comm/nccl/api.h"

#include <dlfcn.h>

#include <vector>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/library/entry_points.h"

namespace tessera::internal::nccl {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
constexpr const char* kVariable = "TESSERA_NCCL";
constexpr const char* kRemedy =
    "install NCCL 2.28 or newer (the package libnccl2, or the wheel nvidia-nccl-cu13) or set "
    "TESSERA_NCCL to the path of its libnccl.so.2";

}  // namespace

std::string version_text(int version) {
  // Up to 2.8 the code had one digit less.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version % 1000 / 100 : version % 10000 / 100;
  return absl::StrCat(major, ".", minor, ".", version % 100);
}

std::string find_unsupported(const Api& api, const NcclOptions& options) {
  using Memory = NcclOptions::Memory;
  if (options.copy_engine && options.memory != Memory::kWindows) {
    return "[nccl] options: got copy_engine without windows, expected memory = kWindows, which copy"
           " engines gather in; set both";
  }
  std::vector<const char*> missing;
  const auto need = [&](bool is_there, const char* name) {
    if (!is_there) missing.push_back(name);
  };
  if (options.memory != Memory::kDefault) {
    need(api.mem_alloc != nullptr, "ncclMemAlloc");
    need(api.mem_free != nullptr, "ncclMemFree");
  }
  if (options.memory == Memory::kRegistered) {
    need(api.comm_register != nullptr, "ncclCommRegister");
    need(api.comm_deregister != nullptr, "ncclCommDeregister");
  }
  if (options.memory == Memory::kWindows) {
    need(api.comm_window_register != nullptr, "ncclCommWindowRegister");
    need(api.comm_window_deregister != nullptr, "ncclCommWindowDeregister");
  }
  if (missing.empty()) return "";
  return absl::StrCat("[nccl] memory: got NCCL ", version_text(api.version), " at '", api.path,
                      "' without ", absl::StrJoin(missing, ", "),
                      ", expected them for registered memory; ", kRemedy,
                      ", or leave memory = kDefault");
}

absl::StatusOr<std::shared_ptr<const Api>> load_api(const EnvironmentLookup& lookup) {
  const std::optional<std::string> named = lookup(kVariable);
  const std::string wanted = named && !named->empty() ? *named : kLibrary;
  const bool is_named = wanted != kLibrary;
  // A second NCCL beside the one that LibTorch brought would share nothing with it but the name.
  void* library = is_named ? nullptr : ::dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) library = ::dlopen(wanted.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "[nccl] library: got none, looked for '", wanted, "' ",
        is_named ? "as TESSERA_NCCL says"
                 : "among the loaded libraries and where the loader looks (LD_LIBRARY_PATH, "
                   "ldconfig)",
        " (", loader_error(), "), expected NCCL; ", kRemedy));
  }

  auto api = std::make_shared<Api>();
  api->path = path_of_library(library);
  EntryPoints entries(library);
  entries.require(api->get_version, "ncclGetVersion");
  if (api->get_version != nullptr) {
    // An older library may lack entry points, too; its version says why.
    if (api->get_version(&api->version) != Result::kSuccess || api->version < kOldestVersion) {
      return absl::FailedPreconditionError(
          absl::StrCat("[nccl] library: got NCCL ", version_text(api->version), " at '", api->path,
                       "', expected ", version_text(kOldestVersion), " or newer; ", kRemedy));
    }
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
  entries.require(api->comm_count, "ncclCommCount");
  entries.require(api->comm_user_rank, "ncclCommUserRank");
  entries.require(api->group_start, "ncclGroupStart");
  entries.require(api->group_end, "ncclGroupEnd");
  entries.require(api->all_reduce, "ncclAllReduce");
  entries.require(api->reduce_scatter, "ncclReduceScatter");
  entries.require(api->all_gather, "ncclAllGather");
  entries.require(api->broadcast, "ncclBroadcast");
  entries.require(api->reduce, "ncclReduce");
  entries.require(api->send, "ncclSend");
  entries.require(api->recv, "ncclRecv");
  entries.find(api->comm_revoke, "ncclCommRevoke");
  entries.find(api->mem_alloc, "ncclMemAlloc");
  entries.find(api->mem_free, "ncclMemFree");
  entries.find(api->comm_register, "ncclCommRegister");
  entries.find(api->comm_deregister, "ncclCommDeregister");
  entries.find(api->comm_window_register, "ncclCommWindowRegister");
  entries.find(api->comm_window_deregister, "ncclCommWindowDeregister");
  if (!entries.missing().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("[nccl] library: got '", api->path, "' without ",
                     absl::StrJoin(entries.missing(), ", "), ", expected NCCL; ", kRemedy));
  }
  return std::shared_ptr<const Api>(std::move(api));
}

}  // namespace tessera::internal::nccl

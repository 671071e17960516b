#pragma once

#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "tessera/core/comm/nccl/abi.h"
#include "tessera/environment.h"

namespace tessera::internal::nccl {

/// The entry points of one NCCL library. Streams are cudaStream_t. The library is never unloaded,
/// because its threads may outlive every user.
struct Api {
  std::string path;  ///< what was loaded
  int version = 0;   ///< as ncclGetVersion codes it: 22809 is 2.28.9

  Result (*get_version)(int* version);
  Result (*get_unique_id)(UniqueId* id);
  const char* (*get_error_string)(Result result);
  const char* (*get_last_error)(OpaqueComm* comm);

  Result (*comm_init_rank_config)(OpaqueComm** comm, int size, UniqueId id, int rank,
                                  Config* config);
  Result (*comm_split)(OpaqueComm* comm, int color, int key, OpaqueComm** made, Config* config);
  Result (*comm_finalize)(OpaqueComm* comm);
  Result (*comm_destroy)(OpaqueComm* comm);
  Result (*comm_abort)(OpaqueComm* comm);
  Result (*comm_get_async_error)(OpaqueComm* comm, Result* result);

  Result (*group_start)();
  Result (*group_end)();
  Result (*all_reduce)(const void* send, void* receive, size_t numel, DataType dtype, RedOp op,
                       OpaqueComm* comm, void* stream);
  Result (*reduce_scatter)(const void* send, void* receive, size_t receive_numel, DataType dtype,
                           RedOp op, OpaqueComm* comm, void* stream);
  Result (*all_gather)(const void* send, void* receive, size_t send_numel, DataType dtype,
                       OpaqueComm* comm, void* stream);
  Result (*broadcast)(const void* send, void* receive, size_t numel, DataType dtype, int root,
                      OpaqueComm* comm, void* stream);
  Result (*reduce)(const void* send, void* receive, size_t numel, DataType dtype, RedOp op,
                   int root, OpaqueComm* comm, void* stream);
  Result (*send)(const void* send, size_t numel, DataType dtype, int peer, OpaqueComm* comm,
                 void* stream);
  Result (*recv)(void* receive, size_t numel, DataType dtype, int peer, OpaqueComm* comm,
                 void* stream);

  Result (*mem_alloc)(void** data, size_t bytes);
  Result (*mem_free)(void* data);
  Result (*comm_register)(const OpaqueComm* comm, void* data, size_t bytes, void** handle);
  Result (*comm_deregister)(const OpaqueComm* comm, void* handle);
  /// Collective. `window` stays null where GPUs have no symmetric memory.
  Result (*comm_window_register)(OpaqueComm* comm, void* data, size_t bytes, OpaqueWindow** window,
                                 int flags);
  Result (*comm_window_deregister)(OpaqueComm* comm, OpaqueWindow* window);
};

/// Local. Opens the library that the environment variable TESSERA_NCCL names or, if it is not set,
/// libnccl.so.2. If that library is loaded already, uses it; otherwise the dynamic loader searches
/// for it, and opening it takes a tenth of a second. Returns an error if there is no library, if it
/// is older than 2.28, or if it lacks entry points (the error lists all of them). The error says
/// what was looked for, where, and what to do.
absl::StatusOr<std::shared_ptr<const Api>> load_api(
    const EnvironmentLookup& lookup = process_environment);

}  // namespace tessera::internal::nccl

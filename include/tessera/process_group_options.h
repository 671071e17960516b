#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/nccl_options.h"

namespace tessera {

/// How a process finds its peers. Everything left out is read from the environment (environment.h
/// lists the variables of each launcher); with no variable set the process is a world of one.
struct ProcessGroupOptions {
  /// The device of the job's tensors: at::kCPU, or at::kCUDA for a GPU of this rank's own. A GPU
  /// without an index is number LOCAL_RANK, which tessera-run and torchrun set, and GPU 0 in a
  /// world of one; if rank and world_size are given, the index must be, too. With backend "shm"
  /// ranks may share a GPU: a GPU without an index is number LOCAL_RANK modulo the number of GPUs.
  at::Device device = at::kCPU;
  /// This rank and the number of ranks; both or neither. Default: as the launcher says.
  std::optional<int> rank = std::nullopt;
  std::optional<int> world_size = std::nullopt;
  /// "file:///dir/name" in a directory only this user can read: for the ranks of one host, which
  /// meet at a socket of that name; or "tcp://host:port", where rank 0 listens. Default:
  /// TESSERA_STORE, else MASTER_ADDR and MASTER_PORT, else a socket of srun's or mpirun's job.
  std::string store_url = {};
  /// An existing store, in which rank 0 publishes where it listens; takes precedence over
  /// store_url. If it does not answer within the time-out, init_process_group() throws, and the
  /// call that the store has not answered stays behind in a thread. If TESSERA_JOB_TOKEN is set,
  /// values that a process without that token has written into the store are ignored. The store is
  /// not used after the ranks have met.
  c10::intrusive_ptr<c10d::Store> store = {};
  /// How long ranks wait for each other, at start and in every collective. Range: > 0; larger
  /// values than kMaxTimeOut (24 days), such as milliseconds::max(), count as kMaxTimeOut. On CPUs
  /// a dead peer is noticed at once, whatever the time-out; under backend "mpi" it is MPI's
  /// launcher that notices it. The time-out is for a peer that is alive but does not make the call
  /// (stuck, stopped, in an endless loop).
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// "auto", "loopback", "mpi", "hosts", "shm" or "nccl". auto: TESSERA_BACKEND, if that is set;
  /// else loopback for one rank, whatever its device, nccl for GPUs, hosts for CPUs where mpirun or
  /// srun has started ranks on several hosts, and shm for other CPUs. hosts: shared memory inside
  /// each host and MPI between them if all hosts have the same number of ranks, two or more,
  /// numbered host by host; otherwise MPI alone, as under mpi. "shm" with GPUs stages through host
  /// memory, on one host: for tests, and for GPUs without NCCL.
  std::string backend = "auto";
  /// Whether collectives run in a thread of their own (kThread), inside the call (kInline), or as
  /// the number of cores allows (kAuto: in a thread if there are at least twice as many cores as
  /// ranks on this host, else inside the call). Only for CPUs: on GPUs anything but kAuto is an
  /// error.
  enum class Lane : uint8_t { kAuto, kInline, kThread } lane = Lane::kAuto;
  /// If a collective or message waits longer than this, a warning says once which ranks have not
  /// made the call, in which call each was last seen, and whether their processes run, are stopped
  /// or are gone. Not over NCCL. 0: never. Range: >= 0.
  std::chrono::milliseconds report_after = std::chrono::seconds(5);
  /// Memory and copy engines of backend nccl. Ignored in a world of one that "auto" makes; with
  /// other backends anything but the defaults is an error.
  NcclOptions nccl = {};
};

}  // namespace tessera

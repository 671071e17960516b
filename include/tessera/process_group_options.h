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
/// lists the variables); with no variable set the process is a world of one.
struct ProcessGroupOptions {
  /// Where the job's tensors lie: at::kCPU, or at::kCUDA for a GPU of this rank's own. Without an
  /// index that is GPU number LOCAL_RANK, which tessera-run and torchrun set, and GPU 0 in a world
  /// of one; where rank and world_size are given, so is the index. With backend "shm" ranks may
  /// share a GPU: number LOCAL_RANK modulo the number of GPUs, unless there is an index.
  at::Device device = at::kCPU;
  /// This rank and the number of ranks; both or neither. Default: RANK and WORLD_SIZE.
  std::optional<int> rank = std::nullopt;
  std::optional<int> world_size = std::nullopt;
  /// "file:///dir/name" in a directory only this user can read: for the ranks of one host, which
  /// meet at a socket of that name. Default: TESSERA_STORE, else MASTER_ADDR and MASTER_PORT.
  std::string store_url = {};
  /// A store that is there already; wins over store_url. It is used by one thread at a time, which
  /// is left behind with it if it does not answer within the time-out. With TESSERA_JOB_TOKEN what
  /// others write there is ignored while the ranks meet.
  c10::intrusive_ptr<c10d::Store> store = {};
  /// How long ranks wait for each other: to meet at start, and in every collective. Range: > 0;
  /// more than kLongestTimeOut (24 days), milliseconds::max() say, counts as that. A dead
  /// peer is noticed at once, whatever the time-out; it bounds a peer that is alive and does
  /// not come (stuck, stopped, in an endless loop).
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// "auto", "loopback", "shm" or "nccl". auto: loopback for one rank, whatever its device; else
  /// nccl for GPUs and shm for CPUs. "shm" with GPUs stages through host memory, on one host: for
  /// tests, and for GPUs without NCCL.
  std::string backend = "auto";
  /// Whether asynchronous collectives run in a thread of their own (kThread), inside the call
  /// (kInline), or as cores allow (kAuto: a thread when there are at least twice as many cores as
  /// ranks on this host). Only for CPUs: nccl has lanes of its own and refuses all but kAuto, and
  /// so does what stages for GPUs.
  enum class Lane : uint8_t { kAuto, kInline, kThread } lane = Lane::kAuto;
  /// Memory and copy engines of backend nccl; a world of one that "auto" makes has no use for them,
  /// and other backends refuse all but the defaults.
  NcclOptions nccl = {};
};

}  // namespace tessera

#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

/// NCCL's binary interface as of 2.28, declared here because machines without CUDA have no nccl.h
/// but must build this code, too. Where nccl.h is present, the build compares the two
/// (tests/core/comm/nccl/abi_check.cc). Values and layouts are NCCL's and never change within
/// version 2: newer libraries read older configurations by their `version`.
namespace tessera::internal::nccl {

/// The oldest library that is accepted, as ncclGetVersion codes it.
inline constexpr int kOldestVersion = 22800;

/// ncclComm_t is a pointer to an OpaqueComm.
struct OpaqueComm;

enum class Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

/// Values from 5 on are operators made at run time.
enum class RedOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

/// ncclWindow_t is a pointer to an OpaqueWindow.
struct OpaqueWindow;

inline constexpr int kSymmetricWindow = 0x01;      ///< NCCL_WIN_COLL_SYMMETRIC
inline constexpr int64_t kWindowAlignment = 4096;  ///< NCCL_WIN_REQUIRED_ALIGNMENT
inline constexpr int kZeroCtaPolicy = 0x02;  ///< NCCL_CTA_POLICY_ZERO: copy engines move the data

inline constexpr int kNoColor = -1;  ///< the color of a rank that gets no communicator from a split
inline constexpr int kUndefined = INT_MIN;

struct UniqueId {
  static constexpr size_t kBytes = 128;
  char internal[kBytes];
};

/// ncclConfig_t of 2.28.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = kOldestVersion;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
  const char* comm_name = nullptr;
  int collnet_enable = kUndefined;
  int cta_policy = kUndefined;
  int shrink_share = kUndefined;
  int nvls_ctas = kUndefined;
  int n_channels_per_net_peer = kUndefined;
  int nvlink_centric_sched = kUndefined;
};

}  // namespace tessera::internal::nccl

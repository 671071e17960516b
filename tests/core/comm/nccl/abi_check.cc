// Compares core/comm/nccl/abi.h and api.h with NCCL's own header. Built only if that is installed;
// compiling is the check.
#include <cstddef>
#include <type_traits>

#include <nccl.h>

#include "tessera/core/comm/nccl/api.h"

namespace tessera::internal::nccl {
namespace {

static_assert(NCCL_VERSION_CODE >= kOldestVersion);

/// Whether two types are passed in the same way: pointers; integers and enums of equal size;
/// classes of equal size and alignment.
template <typename A, typename B>
constexpr bool kSameType = (std::is_pointer_v<A> && std::is_pointer_v<B>) ||
                           ((std::is_enum_v<A> ||
                             std::is_integral_v<A>)&&(std::is_enum_v<B> ||
                                                      std::is_integral_v<B>)&&sizeof(A) ==
                            sizeof(B)) ||
                           (std::is_class_v<A> && std::is_class_v<B> && sizeof(A) == sizeof(B) &&
                            alignof(A) == alignof(B));

template <typename A, typename B>
constexpr bool kSameFunction = false;
template <typename R, typename... As, typename S, typename... Bs>
constexpr bool kSameFunction<R (*)(As...), S (*)(Bs...)> = [] {
  if constexpr (sizeof...(As) == sizeof...(Bs)) {
    return kSameType<R, S> && (kSameType<As, Bs> && ...);
  } else {
    return false;
  }
}();

// The control: one argument less, and one of another size.
static_assert(!kSameFunction<int (*)(int, int), int (*)(int)>);
static_assert(!kSameFunction<int (*)(int), int (*)(size_t)>);

static_assert(kSameFunction<decltype(Api::get_version), decltype(&ncclGetVersion)>);
static_assert(kSameFunction<decltype(Api::get_unique_id), decltype(&ncclGetUniqueId)>);
static_assert(kSameFunction<decltype(Api::get_error_string), decltype(&ncclGetErrorString)>);
static_assert(kSameFunction<decltype(Api::get_last_error), decltype(&ncclGetLastError)>);
static_assert(
    kSameFunction<decltype(Api::comm_init_rank_config), decltype(&ncclCommInitRankConfig)>);
static_assert(kSameFunction<decltype(Api::comm_split), decltype(&ncclCommSplit)>);
static_assert(kSameFunction<decltype(Api::comm_finalize), decltype(&ncclCommFinalize)>);
static_assert(kSameFunction<decltype(Api::comm_destroy), decltype(&ncclCommDestroy)>);
static_assert(kSameFunction<decltype(Api::comm_abort), decltype(&ncclCommAbort)>);
static_assert(kSameFunction<decltype(Api::comm_get_async_error), decltype(&ncclCommGetAsyncError)>);
static_assert(kSameFunction<decltype(Api::group_start), decltype(&ncclGroupStart)>);
static_assert(kSameFunction<decltype(Api::group_end), decltype(&ncclGroupEnd)>);
static_assert(kSameFunction<decltype(Api::all_reduce), decltype(&ncclAllReduce)>);
static_assert(kSameFunction<decltype(Api::reduce_scatter), decltype(&ncclReduceScatter)>);
static_assert(kSameFunction<decltype(Api::all_gather), decltype(&ncclAllGather)>);
static_assert(kSameFunction<decltype(Api::broadcast), decltype(&ncclBroadcast)>);
static_assert(kSameFunction<decltype(Api::reduce), decltype(&ncclReduce)>);
static_assert(kSameFunction<decltype(Api::send), decltype(&ncclSend)>);
static_assert(kSameFunction<decltype(Api::recv), decltype(&ncclRecv)>);
static_assert(kSameFunction<decltype(Api::mem_alloc), decltype(&ncclMemAlloc)>);
static_assert(kSameFunction<decltype(Api::mem_free), decltype(&ncclMemFree)>);
static_assert(kSameFunction<decltype(Api::comm_register), decltype(&ncclCommRegister)>);
static_assert(kSameFunction<decltype(Api::comm_deregister), decltype(&ncclCommDeregister)>);
static_assert(
    kSameFunction<decltype(Api::comm_window_register), decltype(&ncclCommWindowRegister)>);
static_assert(
    kSameFunction<decltype(Api::comm_window_deregister), decltype(&ncclCommWindowDeregister)>);

constexpr bool same(auto ours, auto theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}
static_assert(same(Result::kSuccess, ncclSuccess));
static_assert(same(Result::kUnhandledCudaError, ncclUnhandledCudaError));
static_assert(same(Result::kSystemError, ncclSystemError));
static_assert(same(Result::kInternalError, ncclInternalError));
static_assert(same(Result::kInvalidArgument, ncclInvalidArgument));
static_assert(same(Result::kInvalidUsage, ncclInvalidUsage));
static_assert(same(Result::kRemoteError, ncclRemoteError));
static_assert(same(Result::kInProgress, ncclInProgress));
static_assert(same(DataType::kInt8, ncclInt8));
static_assert(same(DataType::kUint8, ncclUint8));
static_assert(same(DataType::kInt32, ncclInt32));
static_assert(same(DataType::kInt64, ncclInt64));
static_assert(same(DataType::kFloat16, ncclFloat16));
static_assert(same(DataType::kFloat32, ncclFloat32));
static_assert(same(DataType::kFloat64, ncclFloat64));
static_assert(same(DataType::kBfloat16, ncclBfloat16));
static_assert(same(RedOp::kSum, ncclSum));
static_assert(same(RedOp::kProd, ncclProd));
static_assert(same(RedOp::kMax, ncclMax));
static_assert(same(RedOp::kMin, ncclMin));
static_assert(same(RedOp::kAvg, ncclAvg));
static_assert(kSymmetricWindow == NCCL_WIN_COLL_SYMMETRIC);
static_assert(kWindowAlignment == NCCL_WIN_REQUIRED_ALIGNMENT);
static_assert(kZeroCtaPolicy == NCCL_CTA_POLICY_ZERO);
static_assert(kNoColor == NCCL_SPLIT_NOCOLOR);
static_assert(kUndefined == NCCL_CONFIG_UNDEF_INT);
static_assert(UniqueId::kBytes == NCCL_UNIQUE_ID_BYTES);
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));

// A newer configuration has more at its end.
static_assert(sizeof(Config) <= sizeof(ncclConfig_t));
static_assert(offsetof(Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(Config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
static_assert(offsetof(Config, min_ctas) == offsetof(ncclConfig_t, minCTAs));
static_assert(offsetof(Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(Config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(Config, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(offsetof(Config, traffic_class) == offsetof(ncclConfig_t, trafficClass));
static_assert(offsetof(Config, comm_name) == offsetof(ncclConfig_t, commName));
static_assert(offsetof(Config, collnet_enable) == offsetof(ncclConfig_t, collnetEnable));
static_assert(offsetof(Config, cta_policy) == offsetof(ncclConfig_t, CTAPolicy));
static_assert(offsetof(Config, shrink_share) == offsetof(ncclConfig_t, shrinkShare));
static_assert(offsetof(Config, nvls_ctas) == offsetof(ncclConfig_t, nvlsCTAs));
static_assert(offsetof(Config, n_channels_per_net_peer) ==
              offsetof(ncclConfig_t, nChannelsPerNetPeer));
static_assert(offsetof(Config, nvlink_centric_sched) == offsetof(ncclConfig_t, nvlinkCentricSched));

}  // namespace
}  // namespace tessera::internal::nccl

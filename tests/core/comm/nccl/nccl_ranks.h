#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/comm/nccl/group.h"
#include "tessera/tests/support/fake_nccl/fake_nccl.h"
#include "tessera/tests/support/host_device.h"

namespace tessera::internal::nccl {

/// Blocks until `work` of an NCCL group has run on the device; for other groups calls wait().
void wait_on_host(Work& work);

}  // namespace tessera::internal::nccl

namespace tessera::internal::testing {

/// The fake library, found by the loader of the real one.
std::shared_ptr<const nccl::Api> fake_api();
FakeNccl& fake();

/// A rank's body. Its group ends when the body returns or throws.
using NcclBody = std::function<void(std::shared_ptr<nccl::Group>, HostDevice&)>;
using MakeGroup = std::function<std::shared_ptr<nccl::Group>(nccl::WorldOptions)>;

struct NcclRankOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
  HostDevice::Options device = {};
  MakeGroup make = nccl::make_world;
  int absent_rank = -1;  ///< this rank does not come
};

/// Options with a time-out short enough to wait for, and long enough for ranks to meet.
NcclRankOptions impatient();
/// How the message of that time-out begins: "timed out: waited 1000 ms for ".
std::string waited_impatiently();

/// Runs `body` on `size` threads, each a rank of an NCCL world over the fake, and waits until all
/// communicators are down. Returns what() of each rank's exception, or "". Aborts the program if
/// that does not end.
std::vector<std::string> run_nccl_ranks_expecting_errors(int size, const NcclBody& body,
                                                         const NcclRankOptions& options = {});
/// The same; each exception is a test failure.
void run_nccl_ranks(int size, const NcclBody& body, const NcclRankOptions& options = {});

/// Makes calls until the group has failed.
void call_until_failure(nccl::Group& group);
/// Waits for the failure without making calls.
void wait_for_failure(nccl::Group& group);

/// Blocks until all communicators of this process are down. Aborts the program if they never are.
void await_no_communicators();

/// Number of calls of `function`.
int count_calls(const std::string& function);

}  // namespace tessera::internal::testing

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

/// Blocks until `work` of an NCCL group has run on the device; of any other group, wait().
void wait_on_host(Work& work);

}  // namespace tessera::internal::nccl

namespace tessera::internal::testing {

/// The fake library, found by the loader that finds the real one.
std::shared_ptr<const nccl::Api> fake_api();
FakeNccl& fake();

/// What a rank does. Its group ends when the body returns or throws.
using NcclBody = std::function<void(std::shared_ptr<nccl::Group>, HostDevice&)>;
using MakeGroup = std::function<std::shared_ptr<nccl::Group>(nccl::WorldOptions)>;

struct NcclRankOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
  HostDevice::Options device = {};
  MakeGroup make = nccl::make_world;
  int absent_rank = -1;  ///< does not come
};

/// With a time-out that tests wait for, and within which the ranks must have met.
NcclRankOptions impatient();
/// What the end of that says first: "timed out: waited 1000 ms for ".
std::string waited_impatiently();

/// Runs `body` on `size` threads, each a rank of an NCCL world over the fake, and waits until all
/// communicators are down. what() of each rank's exception, "" for none. Aborts the program if that
/// does not end.
std::vector<std::string> run_nccl_ranks_expecting_errors(int size, const NcclBody& body,
                                                         const NcclRankOptions& options = {});
/// The same; a test failure for each exception.
void run_nccl_ranks(int size, const NcclBody& body, const NcclRankOptions& options = {});

/// Calls until the group has failed.
void call_until_failure(nccl::Group& group);
/// Waits for the failure without taking part.
void wait_for_failure(nccl::Group& group);

/// Blocks until all communicators of this process are down. Aborts the program if they never are.
void await_no_communicators();

/// How often `function` was called.
int count_calls(const std::string& function);

}  // namespace tessera::internal::testing

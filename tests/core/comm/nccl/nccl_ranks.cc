#include "tessera/tests/core/comm/nccl/nccl_ranks.h"

#include <dlfcn.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/meeting/job_table.h"
#include "tessera/core/comm/nccl/pending.h"
#include "tessera/core/process/error_text.h"

namespace tessera::internal::nccl {

void wait_on_host(Work& work) {
  if (auto* pending = dynamic_cast<Pending*>(&work)) {
    pending->wait_on_host();
  } else {
    work.wait();
  }
}

}  // namespace tessera::internal::nccl

namespace tessera::internal::testing {
namespace {

constexpr auto kDeadline = std::chrono::seconds(60);

std::shared_ptr<nccl::Group> make_and_meet(const MakeGroup& make, const nccl::WorldOptions& world,
                                           std::barrier<>& have_met) {
  try {
    auto group = make(world);
    have_met.arrive_and_wait();
    return group;
  } catch (...) {
    have_met.arrive_and_drop();
    throw;
  }
}

}  // namespace

std::shared_ptr<const nccl::Api> fake_api() {
  static const auto api = nccl::load_api([](const char*) { return FAKE_NCCL_PATH; });
  if (!api.ok()) {
    std::fprintf(stderr, "[test] %s\n", std::string(api.status().message()).c_str());
    std::abort();
  }
  return *api;
}

FakeNccl& fake() {
  void* library = ::dlopen(fake_api()->path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  return *reinterpret_cast<FakeNccl* (*)()>(::dlsym(library, "tessera_fake_nccl"))();
}

NcclRankOptions impatient() {
  NcclRankOptions options;
  options.timeout = std::chrono::milliseconds(1000);
  return options;
}

std::string waited_impatiently() {
  return absl::StrCat("timed out: waited ", impatient().timeout.count(), " ms for ");
}

std::vector<std::string> run_nccl_ranks_expecting_errors(int size, const NcclBody& body,
                                                         const NcclRankOptions& options) {
  const auto table = std::make_shared<JobTable>();
  std::vector<std::string> errors(size);
  std::vector<std::future<void>> ranks;
  // A rank that leaves at once must not find another one still joining the world: that rank would
  // get the error there and not in its body.
  std::barrier have_met(size - (options.absent_rank >= 0 ? 1 : 0));
  for (int rank = 0; rank < size; ++rank) {
    if (rank == options.absent_rank) continue;
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      auto device_options = options.device;
      device_options.seed += rank;
      const auto device = std::make_shared<HostDevice>(device_options);
      nccl::WorldOptions world;
      world.api = fake_api();
      world.device = device;
      world.table = table;
      world.rank = rank;
      world.size = size;
      world.timeout = options.timeout;
      // An inquiry gives ranks four such periods and 100 ms to answer.
      world.table_poll = std::chrono::milliseconds(100);
      world.local_poll = std::chrono::milliseconds(1);
      try {
        // This frame owns the group, so an exception of the body unwinds it.
        const auto group = make_and_meet(options.make, world, have_met);
        body(group, *device);
      } catch (const std::exception& error) {
        errors[rank] = error_text(error);
      }
    }));
  }
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  for (auto& rank : ranks) {
    if (rank.wait_until(deadline) != std::future_status::ready) {
      std::fprintf(stderr, "[test] ranks do not finish\n");
      std::abort();
    }
    rank.get();
  }
  await_no_communicators();
  return errors;
}

void run_nccl_ranks(int size, const NcclBody& body, const NcclRankOptions& options) {
  const auto errors = run_nccl_ranks_expecting_errors(size, body, options);
  for (int rank = 0; rank < size; ++rank) EXPECT_EQ(errors[rank], "") << "rank " << rank;
}

void call_until_failure(nccl::Group& group) {
  while (true) {
    nccl::wait_on_host(*group.all_reduce(at::ones({2}), ReduceOp::kSum, "next"));
    std::this_thread::yield();
  }
}

void wait_for_failure(nccl::Group& group) {
  while (group.make_shared_buffer(1, "look") == nullptr) std::this_thread::yield();
}

void await_no_communicators() {
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (fake().live_communicators() > 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      std::fprintf(stderr, "[test] %d communicators are never taken down\n",
                   fake().live_communicators());
      std::abort();
    }
    std::this_thread::yield();
  }
}

int count_calls(const std::string& function) {
  const auto calls = fake().calls();
  return static_cast<int>(std::count_if(
      calls.begin(), calls.end(), [&](const FakeCall& call) { return call.function == function; }));
}

}  // namespace tessera::internal::testing

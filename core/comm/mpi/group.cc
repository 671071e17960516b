#include "tessera/core/comm/mpi/group.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/comm/mpi/progress.h"
#include "tessera/core/comm/mpi/window.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/errors.h"

namespace tessera::internal::mpi {
namespace {

bool is_message(Op op) { return traits_of(op).tensors == OpTraits::Tensors::kMessage; }

}  // namespace

Group::Group(std::shared_ptr<Member> member) : member_(std::move(member)) {
  Progress::instance().post(
      [member = member_] { member->world().guard([&] { member->world().add(member); }); });
}

Group::~Group() {
  if (!member_->world().origin().is_here()) return;
  if (unwinding_.is_by_own_error()) {
    // The exception may be what the group has failed with, and others not know that yet.
    const std::string cause = member_->failure();
    abort(cause.empty()
              ? absl::StrCat("rank ", member_->world().rank(), " left while an exception unwound")
              : cause);
  }
  Progress::instance().post(
      [member = member_] { member->world().guard([&] { member->leave(); }); });
}

std::shared_ptr<Work> Group::run(const Collective& collective) {
  const bool message = is_message(collective.op);
  if (collective.op == Op::kHostGather || collective.op > Op::kMakeWindow) refuse(collective);
  const int64_t sequence = message ? -1 : ++sequence_;
  member_->require_usable(to_string(collective.op), sequence, collective.tag);
  if (!message) {
    note_collective(to_string(collective.op), collective.tag, sequence, member_->name());
  }
  auto call = member_->make_call(collective, sequence);
  const bool is_posted = Progress::instance().post([member = member_, call, message] {
    World& world = member->world();
    world.guard([&] { message ? member->start_message(call) : member->start(call); });
    const std::string cause = world.failure();
    if (!cause.empty()) call->fail(cause);
  });
  if (!is_posted) call->fail(kProcessEnds);
  if (collective.op == Op::kBarrier) call->wait();
  return call;
}

at::Tensor Group::allocate(int64_t numel, at::ScalarType dtype) {
  return allocate_on_host(numel, dtype);
}

std::unique_ptr<tessera::Window> Group::make_window(const at::Tensor& own, std::string_view name) {
  check_window(own, name);
  member_->require_usable(to_string(Op::kMakeWindow), sequence_ + 1, name);
  // First, for others may read as soon as they know of this rank's call. One that fails ends it.
  auto window = std::make_unique<Window>(member_, sequence_ + 1, own);
  run({.op = Op::kMakeWindow, .output = own, .input = own, .tag = name})->wait();
  return window;
}

std::unique_ptr<SharedBuffer> Group::make_shared_buffer(int64_t /*bytes*/, std::string_view name) {
  member_->require_usable(to_string(Op::kSharedBuffer), -1, name);
  return nullptr;
}

std::shared_ptr<ProcessGroup> Group::subgroup(const std::vector<int>& ranks,
                                              std::string_view name) {
  check_subgroup(ranks, name, size(), subgroup_names_);
  subgroup_names_.insert(std::string(name));
  const std::string tag = absl::StrCat(std::string(name), " [", absl::StrJoin(ranks, ", "), "]");
  run({.op = Op::kSubgroup, .tag = tag})->wait();
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  if (own == ranks.end()) return nullptr;
  std::vector<int> world_ranks;
  world_ranks.reserve(ranks.size());
  for (const int rank : ranks) world_ranks.push_back(member_->world_rank(rank));
  return std::make_shared<Group>(std::make_shared<Member>(
      member_->world_ptr(), absl::StrCat(member_->name(), "/", std::string(name)),
      std::move(world_ranks), static_cast<int>(own - ranks.begin())));
}

void Group::abort(std::string_view cause) noexcept {
  try {
    const std::shared_ptr<World>& world = member_->world_ptr();
    if (!world->origin().is_here() || !world->set_failure(std::string(cause))) return;
    report_failure(-1, cause);
    Progress::instance().post([world] { world->guard([&] { world->tell_failure(); }); });
  } catch (...) {  // out of memory: the others' time-out
  }
}

void Group::watch(std::weak_ptr<HostRanks> host) {
  Progress::instance().post(
      [world = member_->world_ptr(), host = std::move(host)] { world->watch(host); });
}

std::shared_ptr<Group> make_world(const char* function, const Calls& calls, Handle comm,
                                  Call::Patience patience) {
  const auto world = std::make_shared<World>(calls, comm, patience);
  const std::chrono::milliseconds timeout = patience.timeout;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto fail = [&](const std::string& cause) {
    throw CommError({function, "world", -1, -1, "mpi"}, cause);
  };
  Progress& progress = Progress::instance();
  progress.post([&progress, world] {
    world->begin();
    progress.attach(world);
  });
  while (!world->is_ready()) {
    const std::string cause = world->failure();
    if (!cause.empty()) fail(cause);
    if (std::chrono::steady_clock::now() > deadline) {
      world->set_failure("the ranks have not met");
      fail(absl::StrCat("timed out: waited ", timeout.count(),
                        " ms, and not all ranks of the communicator have come; each must call ",
                        function, " with this communicator, in the same order as for others"));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  std::vector<int> ranks(static_cast<size_t>(world->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_shared<Group>(
      std::make_shared<Member>(world, "world", std::move(ranks), world->rank()));
}

}  // namespace tessera::internal::mpi

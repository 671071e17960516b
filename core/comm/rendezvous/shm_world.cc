#include "tessera/core/comm/rendezvous/worlds.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/comm/group/group.h"
#include "tessera/core/comm/groups/staged_group.h"
#include "tessera/core/comm/meeting/unix_place.h"
#include "tessera/core/comm/rendezvous/core_share.h"
#include "tessera/core/comm/rendezvous/meet.h"
#include "tessera/core/comm/shm/link.h"
#include "tessera/core/process/error_text.h"

namespace tessera::internal {
namespace {

constexpr int kMaxWorld = 4096;
constexpr int kSpinCount = 2000;

/// In a job of several hosts: how long the ranks of one host wait for each other when they meet to
/// share memory.
constexpr auto kMeetingOfPart = std::chrono::seconds(30);

Lane::Mode mode_of(ProcessGroupOptions::Lane lane, int cores, int ranks) {
  const bool is_thread = lane == ProcessGroupOptions::Lane::kThread ||
                         (lane == ProcessGroupOptions::Lane::kAuto && cores >= 2 * ranks);
  return is_thread ? Lane::Mode::kThread : Lane::Mode::kInline;
}

/// Makes this rank's group over `world`. `callers`: how many threads of a rank use the group at a
/// time, if the group's lane has no thread of its own.
std::shared_ptr<Group> group_of(const ProcessGroupOptions& options,
                                std::shared_ptr<shm::World> world, std::string name = "world",
                                int callers = 1) {
  const int cores = world->cores();
  const int ranks = world->size();
  const Lane::Mode mode = mode_of(options.lane, cores, ranks);
  // Waiting threads spin only if there is a core for every thread of all ranks. Otherwise they
  // would take cores away from the threads that they wait for.
  const int threads = (mode == Lane::Mode::kThread ? 2 : callers) * ranks;
  const int spin_count = threads <= cores ? kSpinCount : 0;
  shm::Channel& channel = world->channel();
  auto memory = world->segment();
  const int rank = world->rank();
  auto link =
      std::make_unique<shm::Link>(std::move(world), std::move(memory), channel, rank, spin_count);
  return std::make_shared<Group>(std::move(link), std::move(name), mode,
                                 Member::Patience{options.timeout, options.report_after});
}

/// Throws if the ranks are on several hosts. Each rank finds that in its own environment variables,
/// so all throw the same text.
void check_one_host(const Environment& environment) {
  TORCH_CHECK(!environment.is_of_scheduler() || environment.is_one_host(), "[rendezvous] ",
              environment.launcher, ": got ranks on several hosts (", environment.local_world_size,
              " of ", environment.world_size,
              " on this one), expected all ranks on one host, as backend 'shm' reaches no other; "
              "start all ranks on one host, or leave the backend to 'auto', which is 'hosts' then");
}

/// Lets the ranks of one host meet in a page of shared memory: the first rank makes it, and the
/// others map it.
class SharedPage final : public Transport {
 public:
  SharedPage(int rank, int world_size, shm::PartOfJob part = {})
      : rank_(rank), world_size_(world_size), part_(std::move(part)) {}

  bool is_local() const override { return true; }

  absl::StatusOr<std::string> open(const std::vector<int>& pids) override {
    const std::string problem = thrown_by([&] { world_ = shm::World::create(pids, rank_, part_); });
    if (!problem.empty()) return absl::InternalError(problem);
    return world_->page().to_text();
  }

  absl::Status enter(const std::string& text) override {
    const auto range = shm::SharedRange::from_text(text);
    if (!range) {
      return absl::InternalError(
          absl::StrCat("[rendezvous] got '", text,
                       "' as the place of the shared page, expected five numbers; run one build of "
                       "Tessera on all ranks"));
    }
    const std::string problem =
        thrown_by([&] { world_ = shm::World::open(rank_, world_size_, *range, part_); });
    return problem.empty() ? absl::OkStatus() : absl::InternalError(problem);
  }

  std::shared_ptr<shm::World> take_world() { return std::move(world_); }

 private:
  const int rank_;
  const int world_size_;
  const shm::PartOfJob part_;
  std::shared_ptr<shm::World> world_;
};

std::shared_ptr<ProcessGroup> meet_on_host(ProcessGroupOptions options,
                                           const Environment& environment) {
  TORCH_CHECK(environment.world_size <= kMaxWorld, "[rendezvous] WORLD_SIZE: got ",
              environment.world_size, " ranks on one host, expected at most ", kMaxWorld,
              "; start fewer ranks");
  if (environment.world_size == 1) return group_of(options, shm::World::create({::getpid()}));
  check_one_host(environment);
  SharedPage page(environment.rank, environment.world_size);
  const auto place = find_place(options, environment);
  meet(*place, page, environment, options.timeout, options.device);
  auto world = page.take_world();
  if (environment.is_of_scheduler()) share_cores(world->cores(), environment.world_size);
  return group_of(options, std::move(world));
}

}  // namespace

std::shared_ptr<Group> make_shm_part(const ProcessGroupOptions& options,
                                     const Environment& environment, HostPart part) {
  Environment of_part = environment;
  of_part.rank = part.own;
  of_part.world_size = static_cast<int>(part.ranks.size());
  const auto timeout = std::min<std::chrono::milliseconds>(options.timeout, kMeetingOfPart);
  UnixPlace place(part.name);
  SharedPage page(of_part.rank, of_part.world_size, {.numbers = part.ranks, .host = part.host});
  ProcessGroupOptions of_group = options;
  of_group.lane = ProcessGroupOptions::Lane::kInline;
  // Two threads of each rank use this group: the rank's own thread, and the thread of the group of
  // several hosts.
  constexpr int kCallers = 2;
  meet(place, page, of_part, timeout, options.device);
  return group_of(of_group, page.take_world(), std::move(part.group), kCallers);
}

std::shared_ptr<ProcessGroup> make_shm_world(ProcessGroupOptions options,
                                             const Environment& environment) {
  const bool is_on_host = options.device.is_cpu();
  const GpuChoice gpu = gpu_of(options, environment, GpuChoice::Use::kShared);
  auto host = meet_on_host(std::move(options), environment);
  if (is_on_host) return host;
  // The GPU is taken only after the ranks have met, so that if one rank cannot take its GPU, all
  // ranks throw its reason.
  std::shared_ptr<Device> device;
  const std::string problem = thrown_by([&] { device = take_gpu(gpu); });
  refuse_on_all_ranks(*host, problem, "init_process_group");
  return std::make_shared<StagedGroup>(std::move(host), std::move(device));
}

}  // namespace tessera::internal

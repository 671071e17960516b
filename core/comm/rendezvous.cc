#include "tessera/core/comm/rendezvous.h"

#include <unistd.h>

#include <exception>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/cuda_world.h"
#include "tessera/core/comm/environment.h"
#include "tessera/core/comm/failure_report.h"
#include "tessera/core/comm/handshake.h"
#include "tessera/core/comm/loopback_group.h"
#include "tessera/core/comm/meeting/place.h"
#include "tessera/core/comm/process_status.h"
#include "tessera/core/comm/refusal.h"
#include "tessera/core/comm/shm/group.h"
#include "tessera/core/comm/staged_group.h"
#include "tessera/core/comm/standard_streams.h"
#include "tessera/core/comm/time_out.h"
#include "tessera/core/error_text.h"
#include "tessera/core/errors.h"

namespace tessera {
namespace {

constexpr int kLargestWorld = 4096;
constexpr int kSpinCount = 2000;

void check_device(const ProcessGroupOptions& options) {
  const at::Device device = options.device;
  TORCH_CHECK(device.is_cpu() || device.is_cuda(), "[rendezvous] options: got device '",
              device.str(), "', expected at::kCPU or at::kCUDA; choose one of them");
  if (device.is_cpu()) {
    TORCH_CHECK(options.backend != "nccl", "[rendezvous] options: got backend 'nccl' with device '",
                device.str(),
                "', expected a GPU, as NCCL moves nothing else; set device ="
                " at::kCUDA, or leave out the backend");
    return;
  }
  TORCH_CHECK(options.lane == ProcessGroupOptions::Lane::kAuto,
              "[rendezvous] options: got a lane with device '", device.str(),
              "', expected none, as GPUs have streams for lanes; leave it out");
  TORCH_CHECK(!options.rank || device.has_index(),
              "[rendezvous] options: got rank and world_size with device 'cuda', expected the"
              " index of its GPU, too; set device = at::Device(at::kCUDA, index)");
}

void check_nccl(const ProcessGroupOptions& options) {
  const NcclOptions& nccl = options.nccl;
  const bool is_usual = nccl.memory == NcclOptions::Memory::kUsual && !nccl.copy_engine;
  const bool may_be_nccl =
      options.device.is_cuda() && (options.backend == "nccl" || options.backend == "auto");
  TORCH_CHECK(is_usual || may_be_nccl,
              "[rendezvous] options: got memory or copy engines of nccl with backend '",
              options.backend, "' on ", options.device.str(),
              ", expected backend 'nccl' on a GPU; leave them out");
  TORCH_CHECK(!nccl.copy_engine || nccl.memory == NcclOptions::Memory::kWindows,
              "[rendezvous] options: got nccl.copy_engine without windows, expected nccl.memory ="
              " kWindows, which copy engines gather in; set both");
}

void check_options(const ProcessGroupOptions& options) {
  TORCH_CHECK(options.rank.has_value() == options.world_size.has_value(),
              "[rendezvous] options: got ", options.rank ? "rank" : "world_size", " without ",
              options.rank ? "world_size" : "rank", ", expected both or neither; set both");
  if (options.rank) {
    TORCH_CHECK(
        *options.world_size >= 1 && *options.rank >= 0 && *options.rank < *options.world_size,
        "[rendezvous] options: got rank ", *options.rank, " of world_size ", *options.world_size,
        ", expected 0 <= rank < world_size; correct them");
  }
  TORCH_CHECK(options.timeout.count() > 0, "[rendezvous] options: got a timeout of ",
              options.timeout.count(), " ms, expected more than 0; leave it out for 10 minutes");
  const std::string& backend = options.backend;
  TORCH_CHECK(
      backend != "mpi" && backend != "gloo", "[rendezvous] options: got backend '", backend,
      "', which is not built yet, expected 'auto', 'loopback', 'shm' or 'nccl'; use 'auto'");
  TORCH_CHECK(backend == "auto" || backend == "loopback" || backend == "shm" || backend == "nccl",
              "[rendezvous] options: got backend '", backend,
              "', expected 'auto', 'loopback', 'shm' or 'nccl'; use 'auto'");
  check_device(options);
  check_nccl(options);
}

Environment environment_for(const ProcessGroupOptions& options) {
  EnvironmentNeeds needs;
  needs.identity = !options.rank.has_value();
  needs.store = options.store == nullptr && options.store_url.empty();
  auto environment = read_environment(process_environment, needs);
  TORCH_CHECK(environment.ok(), std::string(environment.status().message()));
  if (options.rank) {
    environment->rank = *options.rank;
    environment->world_size = *options.world_size;
  }
  return *std::move(environment);
}

Place place_for(const ProcessGroupOptions& options, const Environment& environment) {
  return find_place({.environment = environment,
                     .store_url = options.store_url,
                     .store = options.store,
                     .timeout = options.timeout});
}

std::shared_ptr<ProcessGroup> shm_group(const ProcessGroupOptions& options,
                                        std::shared_ptr<shm::World> world) {
  const int cores = world->cores();
  const int ranks = world->size();
  Lane::Mode mode = Lane::Mode::kInline;
  if (options.lane == ProcessGroupOptions::Lane::kThread) mode = Lane::Mode::kThread;
  if (options.lane == ProcessGroupOptions::Lane::kAuto && cores >= 2 * ranks) {
    mode = Lane::Mode::kThread;
  }
  shm::Member::Options member_options;
  member_options.timeout = options.timeout;
  // Spinning ranks take the cores away from those they wait for.
  const int threads = mode == Lane::Mode::kThread ? 2 * ranks : ranks;
  member_options.spin_count = threads <= cores ? kSpinCount : 0;
  shm::Channel& channel = world->channel();
  auto memory = world->segment();
  const int rank = world->rank();
  auto member = std::make_unique<shm::Member>(std::move(world), std::move(memory), channel, rank,
                                              "world", member_options);
  return std::make_shared<shm::Group>(std::move(member), mode);
}

GpuChoice gpu_choice(const ProcessGroupOptions& options, const Environment& environment,
                     GpuChoice::Use use) {
  GpuChoice choice;
  if (options.device.has_index()) choice.index = options.device.index();
  choice.local_rank = environment.local_rank;
  choice.use = use;
  return choice;
}

std::shared_ptr<ProcessGroup> cuda_group(const ProcessGroupOptions& options,
                                         const Environment& environment) {
  TORCH_CHECK(options.backend != "loopback" || environment.world_size == 1,
              "[rendezvous] options: got backend 'loopback' for ", environment.world_size,
              " ranks, expected one rank; use 'auto'");
  CudaWorldOptions world;
  world.gpu = gpu_choice(options, environment, GpuChoice::Use::kOwn);
  if (options.backend == "nccl") world.backend = CudaWorldOptions::Backend::kNccl;
  world.nccl = options.nccl;
  world.rank = environment.rank;
  world.size = environment.world_size;
  world.job_token = environment.job_token;
  if (world.size > 1) world.place = place_for(options, environment);
  world.timeout = options.timeout;
  return make_cuda_world(world);
}

std::shared_ptr<ProcessGroup> host_group(ProcessGroupOptions options,
                                         const Environment& environment) {
  TORCH_CHECK(environment.world_size <= kLargestWorld, "[rendezvous] WORLD_SIZE: got ",
              environment.world_size, " ranks on one host, expected at most ", kLargestWorld,
              "; more come with several hosts");
  if (environment.world_size == 1) {
    if (options.backend != "shm") return std::make_shared<LoopbackGroup>();
    return shm_group(options, shm::World::create({::getpid()}));
  }
  TORCH_CHECK(options.backend != "loopback", "[rendezvous] options: got backend 'loopback' for ",
              environment.world_size, " ranks, expected one rank; use 'auto'");
  TORCH_CHECK(process_status(::getpid()).has_value(), "[rendezvous] /proc: got no /proc/",
              ::getpid(),
              "/stat, expected what the kernel says of this process: ranks on one host "
              "find each other and their memory there; mount /proc (mount -t proc proc /proc)");
  Place place = place_for(options, environment);
  HandshakeOptions handshake;
  handshake.rank = environment.rank;
  handshake.world_size = environment.world_size;
  handshake.job_token = environment.job_token;
  handshake.timeout = options.timeout;
  if (options.device.is_cuda()) handshake.device = "cuda";
  auto group = shm_group(options, meet(place, handshake));
  group->barrier("init_process_group");  // the host's descriptors are needed until here
  place = {};
  options.store.reset();
  // A store's destructor may still write: nobody may remove its file before all ranks are through.
  group->barrier("init_process_group: stores are closed");
  return group;
}

/// The ranks meet first, so that what one of them lacks is everyone's error.
std::shared_ptr<ProcessGroup> staged_group(const ProcessGroupOptions& options,
                                           const Environment& environment) {
  auto host = host_group(options, environment);
  std::shared_ptr<Device> device;
  std::string problem;
  try {
    device = take_gpu(gpu_choice(options, environment, GpuChoice::Use::kShared));
  } catch (const std::exception& error) {
    problem = error_text(error);
  }
  refuse_together(*host, problem, "init_process_group");
  return std::make_shared<StagedGroup>(std::move(host), std::move(device));
}

}  // namespace

std::shared_ptr<ProcessGroup> init_process_group(ProcessGroupOptions options) {
  check_options(options);
  open_standard_streams();
  options.timeout = bounded(options.timeout);
  const Environment environment = environment_for(options);
  report_failures(environment.rank, environment.world_size);
  try {
    if (options.device.is_cpu()) return host_group(std::move(options), environment);
    if (options.backend == "shm") return staged_group(options, environment);
    return cuda_group(options, environment);
  } catch (...) {
    report_failure(-1, present_error_text());
    throw;
  }
}

}  // namespace tessera

#include "tessera/rendezvous.h"

#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include <absl/algorithm/container.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/loopback_group.h"
#include "tessera/core/comm/rendezvous/meet.h"
#include "tessera/core/comm/rendezvous/worlds.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/core/process/machine.h"
#include "tessera/core/process/standard_streams.h"
#include "tessera/environment.h"
#include "tessera/time_out.h"

namespace tessera {
using namespace internal;

namespace {

constexpr const char* kAuto = "auto";
constexpr std::string_view kBackends[] = {kAuto, "loopback", "mpi", "hosts", "shm", "nccl"};
// The backend names, as error messages list them.
constexpr const char* kBackendNames =
    "'auto', 'loopback' (one rank), 'mpi' (CPUs of any hosts, under mpirun or srun), 'hosts' (mpi, "
    "and shared memory inside each host), 'shm' (ranks of one host) or 'nccl' (GPUs)";

/// Returns the backend that TESSERA_BACKEND names; "auto" if it is not set. Used if the program's
/// options leave the choice to "auto".
std::string backend_by_environment() {
  const std::string named = process_environment("TESSERA_BACKEND").value_or(kAuto);
  TORCH_CHECK(absl::c_linear_search(kBackends, named), "[rendezvous] TESSERA_BACKEND: got '", named,
              "', expected ", kBackendNames, "; unset it");
  return named;
}

void check_device(const ProcessGroupOptions& options) {
  const at::Device device = options.device;
  TORCH_CHECK(device.is_cpu() || device.is_cuda(), "[rendezvous] options: got device '",
              device.str(), "', expected at::kCPU or at::kCUDA; choose one of them");
  const std::string& backend = options.backend;
  if (device.is_cpu()) {
    TORCH_CHECK(backend != "nccl", "[rendezvous] options: got backend '", options.backend,
                "' with device '", device.str(),
                "', expected a GPU, as it moves nothing else; set device = at::kCUDA, or leave out"
                " the backend");
    return;
  }
  TORCH_CHECK(backend != "mpi" && backend != "hosts", "[rendezvous] options: got backend '",
              options.backend, "' with device '", device.str(),
              "', expected the CPU, as it moves nothing else; leave out the device or the backend");
  TORCH_CHECK(options.lane == ProcessGroupOptions::Lane::kAuto,
              "[rendezvous] options: got a lane with device '", device.str(),
              "', expected none, as GPUs have streams for lanes; leave it out");
  TORCH_CHECK(!options.rank || device.has_index(),
              "[rendezvous] options: got rank and world_size with device 'cuda', expected the"
              " index of its GPU, too; set device = at::Device(at::kCUDA, index)");
}

void check_nccl(const ProcessGroupOptions& options) {
  const NcclOptions& nccl = options.nccl;
  const bool is_default = nccl.memory == NcclOptions::Memory::kDefault && !nccl.copy_engine;
  const bool may_be_nccl =
      options.device.is_cuda() && (options.backend == "nccl" || options.backend == kAuto);
  TORCH_CHECK(is_default || may_be_nccl,
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
  TORCH_CHECK(options.report_after.count() >= 0, "[rendezvous] options: got report_after of ",
              options.report_after.count(),
              " ms, expected 0 for never, or more; leave it out for 5 seconds");
  const std::string& backend = options.backend;
  TORCH_CHECK(absl::c_linear_search(kBackends, backend), "[rendezvous] options: got backend '",
              backend, "', expected ", kBackendNames, "; use 'auto'");
  check_device(options);
  check_nccl(options);
}

/// Returns true if these options choose backend "hosts", or leave the choice to "auto" on the CPUs
/// of several hosts.
bool is_over_hosts(const ProcessGroupOptions& options, const Environment& environment) {
  if (options.backend == "hosts") return true;
  const bool has_hosts =
      environment.is_of_scheduler() && (!environment.is_one_host() || !environment.host.empty());
  return options.backend == kAuto && options.device.is_cpu() && has_hosts;
}

bool is_over_mpi(const ProcessGroupOptions& options, const Environment& environment) {
  return options.backend == "mpi" || is_over_hosts(options, environment);
}

Environment environment_for(const ProcessGroupOptions& options) {
  EnvironmentNeeds needs;
  needs.identity = !options.rank.has_value();
  needs.store = options.store == nullptr && options.store_url.empty();
  auto environment = read_environment(process_environment, {needs.identity, /*store=*/false});
  // Ranks over MPI need no place to meet, because MPI's launcher has connected them already.
  const bool needs_place = !environment.ok() || !is_over_mpi(options, *environment);
  if (needs_place) environment = read_environment(process_environment, needs);
  TORCH_CHECK(environment.ok(), std::string(environment.status().message()));
  if (options.rank) {
    environment->rank = *options.rank;
    environment->world_size = *options.world_size;
    environment->launcher = "the program's options";
  }
  return *std::move(environment);
}

/// Prints who this rank is and where it meets the others. All of it is one write, because the ranks
/// share the terminal.
void say_identity(const ProcessGroupOptions& options, const Environment& environment) {
  std::string line = absl::StrCat("[rendezvous] ", describe_identity(environment), "; pid ",
                                  ::getpid(), " on ", machine_name());
  if (is_over_mpi(options, environment)) {
    absl::StrAppend(&line, "; ranks meet by MPI");
  } else if (environment.world_size > 1) {
    absl::StrAppend(&line, "; ranks meet at ", find_place(options, environment)->text());
  }
  std::fprintf(stderr, "%s\n", line.c_str());
}

std::string choose_backend(const ProcessGroupOptions& options, const Environment& environment) {
  const int ranks = environment.world_size;
  if (options.backend == kAuto) {
    if (is_over_hosts(options, environment)) return "hosts";
    return ranks == 1 ? "loopback" : options.device.is_cpu() ? "shm" : "nccl";
  }
  TORCH_CHECK(options.backend != "loopback" || ranks == 1, "[rendezvous] options: got backend '",
              options.backend, "' for ", ranks, " ranks, expected one rank; use 'auto'");
  return options.backend;
}

std::shared_ptr<ProcessGroup> make_world(const std::string& backend, ProcessGroupOptions options,
                                         const Environment& environment) {
  if (backend == "mpi") return make_mpi_world(std::move(options), environment);
  if (backend == "hosts") return make_hosts_world(std::move(options), environment);
  if (backend == "shm") return make_shm_world(std::move(options), environment);
  if (backend == "nccl") return make_nccl_world(std::move(options), environment);
  if (options.device.is_cpu()) return std::make_shared<LoopbackGroup>();
  return std::make_shared<LoopbackGroup>(
      take_gpu(gpu_of(options, environment, GpuChoice::Use::kOwn)));
}

}  // namespace

std::shared_ptr<ProcessGroup> init_process_group(ProcessGroupOptions options) {
  if (options.backend == kAuto) options.backend = backend_by_environment();
  check_options(options);
  open_standard_streams();
  options.timeout = bounded(options.timeout);
  const Environment environment = environment_for(options);
  if (environment.is_verbose) say_identity(options, environment);
  report_failures(environment.rank, environment.world_size);
  try {
    const std::string backend = choose_backend(options, environment);
    return make_world(backend, std::move(options), environment);
  } catch (...) {
    report_failure(-1, present_error_text());
    throw;
  }
}

}  // namespace tessera

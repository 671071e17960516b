// Trains each task of prove_reference with Tessera, under any configuration, on any number of
// ranks:
//
//   tessera-run --standalone --nproc-per-node 4 -- prove_training --strategy zero3 --out <folder>
//
// See training.h for the output files. A rank that fails writes the reason to rank<r>.error;
// otherwise it writes its number of open ports (open_ports.h) to rank<r>.ports.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>

#include <absl/flags/flag.h>
#include <absl/flags/parse.h>
#include <absl/flags/usage.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "tessera/tests/prove/sharded/open_ports.h"
#include "tessera/tests/prove/sharded/training.h"

ABSL_FLAG(std::string, out, "", "a folder to write to");
ABSL_FLAG(std::string, task, "", "only this task; empty: all");
ABSL_FLAG(tessera::Strategy, strategy, tessera::Strategy::kDdp, "ddp, zero1, zero2, zero3, hybrid");
ABSL_FLAG(std::string, degrees, "", "of a hybrid, p,g,o");
ABSL_FLAG(int, reshard_after_forward, 0, "over how many ranks units stay split; 0: unset");
ABSL_FLAG(bool, apart, false, "each rank keeps a copy of the parameters (share_parameters false)");
ABSL_FLAG(bool, optimizer_in_backward, false, "update each unit as soon as it is reduced");
ABSL_FLAG(std::string, control, "none", "a mistake to make: see control_group.h");
ABSL_FLAG(std::string, misuse, "none", "what rank 1 does wrong in the third step: see misuse.h");

namespace prove {
namespace {

tessera::Options options_of_flags() {
  tessera::Options options{.strategy = absl::GetFlag(FLAGS_strategy)};
  if (!absl::GetFlag(FLAGS_degrees).empty()) {
    const auto degrees = tessera::parse_degrees(absl::GetFlag(FLAGS_degrees));
    TORCH_CHECK(degrees.ok(), std::string(degrees.status().message()));
    options.degrees = *degrees;
  }
  if (absl::GetFlag(FLAGS_reshard_after_forward) > 0) {
    options.reshard_after_forward = absl::GetFlag(FLAGS_reshard_after_forward);
  }
  options.share_parameters = !absl::GetFlag(FLAGS_apart);
  options.optimizer_in_backward = absl::GetFlag(FLAGS_optimizer_in_backward);
  const bool is_split = options.strategy == tessera::Strategy::kZero3 ||
                        (options.degrees.has_value() && options.degrees->parameters > 1);
  // Several buckets, as for a model that is worth splitting.
  if (!is_split) options.bucket_bytes = {int64_t{16} << 10};
  return options;
}

void run() {
  tessera::ProcessGroupOptions group;
  group.timeout = std::chrono::minutes(1);  // here a hang counts as a failure
  const auto world = tessera::init_process_group(group);
  const Training training{.options = options_of_flags(),
                          .control = parse_control(absl::GetFlag(FLAGS_control)),
                          .misuse = parse_misuse(absl::GetFlag(FLAGS_misuse)),
                          .folder = absl::GetFlag(FLAGS_out)};
  const std::string only = absl::GetFlag(FLAGS_task);
  for (const Task& task : tasks()) {
    if (only.empty() || only == task.name) train(task, training, world);
  }
  std::ofstream(training.folder + "/rank" + std::to_string(world->rank()) + ".ports")
      << open_ports() << '\n';
  world->barrier("all have looked");
}

/// Prints `text` and stores `cause`, so that ranks can be compared: the cause of a failed
/// collective is the same on all ranks.
int fail(const std::string& text, const std::string& cause) {
  std::fprintf(stderr, "prove_training: %s\n", text.c_str());
  const char* rank = std::getenv("RANK");
  std::ofstream(absl::GetFlag(FLAGS_out) + "/rank" + (rank == nullptr ? "0" : rank) + ".error")
      << cause << '\n';
  return 1;
}

}  // namespace
}  // namespace prove

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("trains the tasks of prove_reference on ranks.");
  absl::ParseCommandLine(argc, argv);
  try {
    prove::run();
  } catch (const tessera::CommError& error) {
    return prove::fail(error.what(), error.cause());
  } catch (const c10::Error& error) {
    return prove::fail(error.what_without_backtrace(), error.what_without_backtrace());
  } catch (const std::exception& error) {
    return prove::fail(error.what(), error.what());
  }
}

// A rank on one of two hosts that trains until its world fails (started by failures.sh). It writes
// its pid to ready.<rank>, the number of its last committed step to step.<rank> and its error to
// error.<rank> in HOSTS_FOLDER.
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>

#include <torch/torch.h>

#include "tessera/core/process/error_text.h"
#include "tessera/tests/faults/trainer.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/rank_processes.h"

namespace tessera::internal::testing {
namespace {

void write_file(const std::string& name, int rank, const std::string& text) {
  const char* folder = std::getenv("HOSTS_FOLDER");
  const std::string path =
      std::string(folder == nullptr ? "." : folder) + "/" + name + "." + std::to_string(rank);
  std::ofstream(path + ".new") << text << "\n";
  std::rename((path + ".new").c_str(), path.c_str());  // readers see all of it or nothing
}

void train_until_failure() {
  const auto world = join();
  at::set_num_threads(1);
  const char* name = std::getenv("HOSTS_CONFIGURATION");
  const Trainer trainer(world, configuration_called(name == nullptr ? "zero3" : name));
  try {
    for (int step = 0;; ++step) {
      trainer.train(step);
      write_file("step", world->rank(), std::to_string(step));
      if (step == 2) write_file("ready", world->rank(), std::to_string(::getpid()));
    }
  } catch (const std::exception& error) {
    write_file("error", world->rank(), error_text(error));
    throw;
  }
}
const RankProcessBody kTrainUntilFailure("hosts_until_failure", train_until_failure);

}  // namespace
}  // namespace tessera::internal::testing

// On one of two hosts a rank leaves by exit(3) in a hook inside backward, and the others throw
// (started by exits.sh). Writes each of the others' errors to error.<rank> in HOSTS_FOLDER.
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

constexpr int kLeaver = 2;

void exit_in_backward() {
  const auto world = join();
  at::set_num_threads(1);
  const Trainer trainer(world, configuration_called(std::getenv("HOSTS_CONFIGURATION")));
  trainer.train(0);
  if (world->rank() == kLeaver) {
    trainer.net->first->weight.register_hook([](const at::Tensor&) { std::exit(3); });
  }
  try {
    trainer.train(1);
  } catch (const std::exception& error) {
    std::ofstream(std::string(std::getenv("HOSTS_FOLDER")) + "/error." +
                  std::to_string(world->rank()))
        << error_text(error) << "\n";
    throw;
  }
}
const RankProcessBody kExitInBackward("hosts_exit_in_backward", exit_in_backward);

}  // namespace
}  // namespace tessera::internal::testing

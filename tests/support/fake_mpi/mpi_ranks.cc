#include "tessera/tests/core/comm/mpi/mpi_ranks.h"

#include <atomic>
#include <stdexcept>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/mpi/progress.h"
#include "tessera/core/comm/mpi/world_group.h"
#include "tessera/core/process/error_text.h"
#include "tessera/mpi_group.h"
#include "tessera/tests/support/fake_mpi/fake_mpi.h"

namespace tessera::internal::testing {
namespace mpi_ranks_parts {  // unity builds join anonymous namespaces, so this one has a name

/// Makes a new world; returns its communicators by rank.
std::vector<tessera::mpi::Handle> new_communicators(int size) {
  static std::atomic<int> worlds{0};
  const int world = ++worlds;
  std::vector<tessera::mpi::Handle> communicators(static_cast<size_t>(size));
  mpi::Progress::instance().run(
      [&] {  // one thread may call the fake, as with MPI
        for (int rank = 0; rank < size; ++rank) {
          communicators[static_cast<size_t>(rank)] = fake_communicator(world, size, rank);
        }
      },
      std::chrono::seconds(20));
  return communicators;
}

}  // namespace mpi_ranks_parts

using mpi_ranks_parts::new_communicators;

std::vector<std::string> run_mpi_worlds_expecting_errors(int size, const MpiWorldBody& body,
                                                         std::chrono::milliseconds timeout,
                                                         std::chrono::milliseconds report_after) {
  const std::vector<tessera::mpi::Handle> communicators = new_communicators(size);
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        body(mpi::make_world(fake_mpi(), communicators[static_cast<size_t>(rank)],
                             {.timeout = timeout, .report_after = report_after},
                             mpi::MpiOwner::kApplication));
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error_text(error);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

std::vector<std::string> run_mpi_ranks_expecting_errors(int size, const MpiBody& body,
                                                        std::chrono::milliseconds timeout,
                                                        std::chrono::milliseconds report_after) {
  return run_mpi_worlds_expecting_errors(
      size, [&](mpi::WorldGroup made) { body(std::move(made.group)); }, timeout, report_after);
}

void run_mpi_ranks(int size, const MpiBody& body, std::chrono::milliseconds timeout) {
  std::string text;
  const auto errors = run_mpi_ranks_expecting_errors(size, body, timeout);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) absl::StrAppend(&text, "rank ", rank, ": ", errors[rank], "\n");
  }
  if (!text.empty()) throw std::runtime_error(text);
}

std::function<std::shared_ptr<ProcessGroup>(std::shared_ptr<ProcessGroup>)> over_mpi(
    int size, std::chrono::milliseconds timeout) {
  return [timeout, communicators = new_communicators(size)](std::shared_ptr<ProcessGroup> group) {
    const auto rank = static_cast<size_t>(group->rank());
    return std::shared_ptr<ProcessGroup>(
        tessera::mpi::process_group(fake_mpi(), communicators[rank], timeout));
  };
}

}  // namespace tessera::internal::testing

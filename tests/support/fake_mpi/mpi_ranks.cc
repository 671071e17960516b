#include "tessera/tests/core/comm/mpi/mpi_ranks.h"

#include <atomic>
#include <stdexcept>
#include <thread>

#include <ATen/Parallel.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/mpi/progress.h"
#include "tessera/core/process/error_text.h"
#include "tessera/mpi_group.h"
#include "tessera/tests/support/fake_mpi/fake_mpi.h"

namespace tessera::internal::testing {

std::vector<std::string> run_mpi_ranks_expecting_errors(int size, const MpiBody& body,
                                                        std::chrono::milliseconds timeout) {
  static std::atomic<int> worlds{0};
  const int world = ++worlds;
  std::vector<tessera::mpi::Handle> communicators(static_cast<size_t>(size));
  mpi::Progress::instance().run(
      [&] {  // the fake is one thread's, as MPI is
        for (int rank = 0; rank < size; ++rank) {
          communicators[static_cast<size_t>(rank)] = fake_communicator(world, size, rank);
        }
      },
      std::chrono::seconds(20));
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        body(tessera::mpi::process_group(fake_mpi(), communicators[static_cast<size_t>(rank)],
                                         timeout));
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error_text(error);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

void run_mpi_ranks(int size, const MpiBody& body, std::chrono::milliseconds timeout) {
  std::string text;
  const auto errors = run_mpi_ranks_expecting_errors(size, body, timeout);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) absl::StrAppend(&text, "rank ", rank, ": ", errors[rank], "\n");
  }
  if (!text.empty()) throw std::runtime_error(text);
}

}  // namespace tessera::internal::testing

#pragma once

#include <functional>
#include <memory>

#include "tessera/process_group.h"
#include "tessera/process_group_options.h"

namespace tessera {

/// Local. Runs `body` on `n` threads of this process, each a rank of one world, and returns when
/// all have returned: for several devices of one process, as LibTorch's data_parallel() has them,
/// and for trying a program of ranks in a debugger or a test. Ranks compute the same as in
/// processes, to the bit.
///
///     tessera::run_threads(4, [&](std::shared_ptr<tessera::ProcessGroup> world) {
///       auto model = std::dynamic_pointer_cast<Net>(prototype->clone(world->device()));
///       auto engine = tessera::parallelize(model, ...);
///     }, {.device = at::kCUDA});
///
/// Each rank makes a model and an engine of its own, and destroys both before the body returns.
/// With at::kCUDA rank r has GPU r; LibTorch runs all backwards of a GPU on one thread, so ranks
/// cannot share one. On CPUs each rank's operators get an equal share of the cores, unless
/// OMP_NUM_THREADS or another variable says how many threads there are.
///
/// Ranks share what belongs to the process: LibTorch's random number generator of the CPU (so build
/// models before; what a forward draws, as for dropout, depends on how threads take turns), ATen's
/// settings (at::set_num_threads() is set anew for each thread and put back at the end), memory,
/// the program's own globals. Modes of a thread, such as at::NoGradGuard, do not go from the
/// calling thread to the ranks. Processes (launch(), tessera-run) share none of this, and one that
/// dies does not take the others along.
///
/// A rank that throws leaves its groups, and the others fail when they wait for it. When all have
/// ended RankError is thrown: the rank that failed first by itself, its text, and its exception.
///
/// `n`: 1 to 4096. `options`: rank, world_size, store and store_url must be unset. Calls may nest
/// and run concurrently: each has a world of its own. In a rank of a job of several processes it
/// throws c10::Error, as it does for wrong options; std::runtime_error where the system refuses a
/// thread.
void run_threads(int n, const std::function<void(std::shared_ptr<ProcessGroup>)>& body,
                 ProcessGroupOptions options = {});

}  // namespace tessera

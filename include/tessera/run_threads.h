#pragma once

#include <functional>
#include <memory>

#include "tessera/process_group.h"
#include "tessera/process_group_options.h"

namespace tessera {

/// Local. Runs `body` on `n` threads of this process, each a rank of one world, and returns when
/// all have returned. Use it to train on several devices in one process, as LibTorch's
/// data_parallel() does, or to run a program of several ranks in a debugger or a test. Ranks
/// compute the same as in processes, to the bit.
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
/// Ranks share whatever belongs to the process: memory, the program's own globals, ATen's settings
/// and LibTorch's random number generator of the CPU. So build models before the call; the random
/// numbers of a forward, as for dropout, depend on how threads take turns. at::set_num_threads() is
/// called for each thread, and the end of the call restores the number that its beginning found (of
/// concurrent calls the last one to end decides). Modes of a thread, such as at::NoGradGuard, do
/// not go from the calling thread to the ranks. Processes (launch(), tessera-run) share none of
/// this, and a process that dies does not end the others.
///
/// A rank that throws leaves its groups, and the others fail when they wait for it. When all have
/// ended, run_threads() throws RankError with the number, the text and the exception of the rank
/// that failed first by itself. A rank that throws CommError counts as failed because of another
/// rank. Of the ranks that throw something else, RankError names the one whose exception was the
/// first to unwind its groups.
///
/// `n`: 1 to 4096. `options`: rank, world_size, store and store_url must be unset, and the backend
/// may not be "mpi" or "hosts". Calls may nest and run concurrently: each has a world of its own.
/// Throws c10::Error in a rank of a job of several processes and for wrong options, and
/// std::runtime_error if the system refuses a thread.
void run_threads(int n, const std::function<void(std::shared_ptr<ProcessGroup>)>& body,
                 ProcessGroupOptions options = {});

}  // namespace tessera

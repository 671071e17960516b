#pragma once

#include <chrono>
#include <functional>

namespace tessera {

/// How a program starts its ranks.
struct LaunchOptions {
  /// Number of ranks, all on this host. Range: 1 to 4096.
  int nproc = 1;
  /// How much time ranks get to end after a signal before they get SIGKILL. Range: >= 0.
  std::chrono::milliseconds grace = std::chrono::seconds(20);
};

/// For main() of a program that starts its own ranks, as Python's torch.multiprocessing.spawn()
/// does: starts this program again `nproc` times with the same arguments, and waits for all. In
/// each of those processes main() reaches this call, too; there `fn` runs as one rank, and launch()
/// returns the result of `fn`, which main() should return. So each rank runs the code before this
/// call, and the variables that `fn` refers to are the rank's own. In a process that a launcher
/// (tessera-run, torchrun, srun, mpirun) has made a rank already, `fn` runs at once, whatever
/// `nproc` says.
///
///     int main(int argc, char** argv) {
///       return tessera::launch(argc, argv, {.nproc = 4}, [&] { return train(argc, argv); });
///     }
///
/// In a rank an exception that leaves `fn` is handled as by record_errors(). In the process that
/// starts the ranks the call is local, blocks until all ranks have ended, and returns 0 if all have
/// returned 0. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the ranks; if no rank fails by
/// itself, the call returns 128 + signal. When a rank fails, launch() sends the others SIGTERM and
/// after the grace period SIGKILL, and throws RankError, which names the rank that failed first,
/// with the text of its exception. A rank fails by an exit code other than 0, by a signal, or by
/// exit code 0 if it has neither reached this call nor made a ProcessGroup. A second signal to this
/// process kills all ranks at once. SIGUSR1 and SIGUSR2 are passed on.
///
/// Ranks get the variables that tessera-run sets (docs/launching.md), this process's descriptors
/// except stdin, which is empty, and POSIX process groups of their own. They end with this process,
/// however it ends, and so do the processes that they have started.
///
/// The calling process may have threads and may have used a GPU, because none of the program's code
/// runs in a fork of this process. While it waits, it has handlers of its own for the signals above
/// and SIGCHLD, and no other thread may wait for any child (waitpid(-1)).
///
/// Throws c10::Error if an option or a launcher's variable is wrong, and if this is called inside
/// `fn`, after `fn` has ended, in a program that a rank has started, or while another call is
/// running; std::runtime_error if the system refuses a process, a descriptor or a directory.
int launch(int argc, char** argv, const LaunchOptions& options, const std::function<int()>& fn);

}  // namespace tessera

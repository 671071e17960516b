#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/rendezvous.h"
#include "tessera/tests/support/patience.h"

namespace tessera::internal::testing {

/// A body that rank processes can run, found by its name in the test binary. Define one
/// at namespace scope:
///   const RankProcessBody kTrain("train", [] { auto world = init_process_group(); ... });
/// A body that throws ends its process with code 1 and what() as the last line of its output. Test
/// assertions that fail in it end it with code 2.
class RankProcessBody {
 public:
  RankProcessBody(const char* name, std::function<void()> body);
};

struct RankProcessOptions {
  /// Set in every rank besides RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and TESSERA_STORE; ""
  /// unsets a variable.
  std::map<std::string, std::string> environment = {};
  /// The same for single ranks; wins.
  std::map<int, std::map<std::string, std::string>> environment_of_rank = {};
  /// Whether each rank is an execution of this test binary. Else they are forked from one
  /// (RankStarter), unless a variable is not of those that a process reads when it is running:
  /// TEST_*, TESSERA_*, MASTER_*, LOCAL_*, RANK, WORLD_SIZE.
  bool are_executed = false;
  /// After this long all ranks are killed and `timed_out` says so.
  std::chrono::milliseconds deadline = kPatience;
};

/// How a rank ended.
struct RankResult {
  int exit_code = -1;  ///< 128 + signal if a signal ended it
  bool timed_out = false;
  std::string output;  ///< stdout and stderr together
};

/// Rank processes of one job, of this test binary. The parent never touches torch before they
/// start.
class RankProcesses {
 public:
  /// Starts `size` ranks that run the body called `body`.
  RankProcesses(int size, const std::string& body, const RankProcessOptions& options = {});
  /// Kills what still runs.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  /// Blocks until a rank has written `text` (or has ended, or the deadline has passed); returns
  /// whether it has.
  bool wait_for_output(int rank, const std::string& text);
  /// Sends SIGKILL, or another signal.
  void kill(int rank);
  void kill(int rank, int signal);
  pid_t pid(int rank) const;

  /// Blocks until all have ended; at the deadline kills them.
  std::vector<RankResult> wait();

 private:
  struct Child;
  void start(int rank, int size, const std::string& body, const RankProcessOptions& options);
  static bool await_end(Child& child, bool may_block);
  bool pump(int wait_ms);

  std::string directory_;
  std::vector<std::unique_ptr<Child>> children_;
  std::chrono::steady_clock::time_point started_;
  std::chrono::milliseconds deadline_;
};

/// Starts ranks and waits for them.
std::vector<RankResult> run_rank_processes(int size, const std::string& body,
                                           const RankProcessOptions& options = {});

/// In a body: the world that this process's environment describes; TEST_TIMEOUT_MS is its time-out,
/// by default 50 s.
std::shared_ptr<ProcessGroup> join();

/// In a body: a line of output, at once.
void say(const std::string& text);

/// A TCP port of the loopback device at which nobody listens.
int free_port();

/// For main(): if this process is a rank, or the starter of ranks, does what it has to and returns
/// the exit code; else -1.
int run_rank_body_if_asked(int argc, char** argv);

}  // namespace tessera::internal::testing

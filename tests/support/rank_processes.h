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

/// A body that rank processes can run, looked up by its name in the test binary. Define one at
/// namespace scope:
///   const RankProcessBody kTrain("train", [] { auto world = init_process_group(); ... });
/// A body that throws ends its process with code 1 and what() as the last line of output. A failed
/// test assertion ends it with code 2.
class RankProcessBody {
 public:
  RankProcessBody(const char* name, std::function<void()> body);
};

struct RankProcessOptions {
  /// Variables that are set in every rank besides RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
  /// and TESSERA_STORE; "" unsets a variable.
  std::map<std::string, std::string> environment = {};
  /// The same for single ranks; overrides `environment`.
  std::map<int, std::map<std::string, std::string>> environment_of_rank = {};
  /// Whether each rank executes this test binary. Otherwise ranks are forked (RankStarter), unless
  /// the environment sets a variable that is read at load time: any but TEST_*, TESSERA_*,
  /// MASTER_*, LOCAL_*, RANK, WORLD_SIZE.
  bool are_executed = false;
  /// After this time all ranks are killed and `timed_out` is set.
  std::chrono::milliseconds deadline = kPatience;
};

/// How a rank ended.
struct RankResult {
  int exit_code = -1;  ///< 128 + signal if a signal ended it
  bool timed_out = false;
  std::string output;  ///< stdout and stderr together
};

/// Rank processes of one job, running this test binary. The parent does not use torch before they
/// start.
class RankProcesses {
 public:
  /// Starts `size` ranks that run the body called `body`.
  RankProcesses(int size, const std::string& body, const RankProcessOptions& options = {});
  /// Kills ranks that still run.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  /// Blocks until a rank has written `text`, has ended, or the deadline has passed. Returns true if
  /// the rank has written `text`.
  bool wait_for_output(int rank, const std::string& text);
  /// Sends SIGKILL, or `signal`.
  void kill(int rank);
  void kill(int rank, int signal);
  pid_t pid(int rank) const;

  /// Blocks until all ranks have ended; kills them at the deadline.
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

/// Starts ranks and waits for their ends.
std::vector<RankResult> run_rank_processes(int size, const std::string& body,
                                           const RankProcessOptions& options = {});

/// In a body: joins the world that the environment describes; its time-out is TEST_TIMEOUT_MS, by
/// default 50 s.
std::shared_ptr<ProcessGroup> join();

/// In a body: writes a line of output and flushes it.
void say(const std::string& text);

/// A TCP port of the loopback device on which nobody listens.
int free_port();

/// For main(): if this process is a rank or a starter of ranks, runs it and returns the exit code;
/// otherwise returns -1.
int run_rank_body_if_asked(int argc, char** argv);

}  // namespace tessera::internal::testing

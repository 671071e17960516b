#include "tessera/tests/support/rank_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/meeting/tcp_address.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/file_descriptor.h"
#include "tessera/tests/support/rank_starter.h"

extern char** environ;

namespace tessera::internal::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kFlag = "--rank_body=";

std::map<std::string, std::function<void()>>& bodies() {
  static std::map<std::string, std::function<void()>> registered;
  return registered;
}

std::map<std::string, std::string> current_environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

int exit_code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/// Whether a variable is read only by running code: no library reads it at load time, and no test
/// reads it in /proc/PID/environ.
bool may_be_set_late(const std::string& variable) {
  for (const char* prefix : {"TEST_", "TESSERA_", "MASTER_", "LOCAL_"}) {
    if (absl::StartsWith(variable, prefix)) return true;
  }
  return variable == "RANK" || variable == "WORLD_SIZE";
}

bool must_be_executed(int rank, const RankProcessOptions& options) {
  const auto is_early = [](const auto& variable) { return !may_be_set_late(variable.first); };
  const auto own = options.environment_of_rank.find(rank);
  return options.are_executed || std::ranges::any_of(options.environment, is_early) ||
         (own != options.environment_of_rank.end() && std::ranges::any_of(own->second, is_early));
}

/// Executes this test binary.
RankStarter::Rank execute(const std::string& body, std::vector<std::string>& variables,
                          int output) {
  // Allocate everything before fork(), because the parent may have threads.
  std::vector<char*> environment;
  environment.reserve(variables.size() + 1);
  for (auto& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  std::string flag = absl::StrCat(kFlag, body);
  char* arguments[] = {const_cast<char*>(program.c_str()), flag.data(), nullptr};
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork failed");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
    ::execve(program.c_str(), arguments, environment.data());
    ::_exit(127);
  }
  return {pid, FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)))};
}

int run_body(const std::string& name) {
  const auto body = bodies().find(name);
  if (body == bodies().end()) {
    std::fprintf(stderr, "no rank body of this name: %s\n", name.c_str());
    return 3;
  }
  try {
    body->second();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error_text(error).c_str());
    return 1;
  }
  return ::testing::Test::HasFailure() ? 2 : 0;
}

}  // namespace

struct RankProcesses::Child {
  pid_t pid = -1;
  bool is_executed = false;
  // Readable when the rank has ended; for a forked rank its status can be read from it.
  FileDescriptor end;
  int output_fd = -1;
  bool ended = false;
  RankResult result;
};

RankProcessBody::RankProcessBody(const char* name, std::function<void()> body) {
  bodies()[name] = std::move(body);
}

RankProcesses::RankProcesses(int size, const std::string& body, const RankProcessOptions& options)
    : started_(Clock::now()), deadline_(options.deadline) {
  char directory[] = "/tmp/tessera-test-XXXXXX";  // mkdtemp makes it with mode 0700
  if (::mkdtemp(directory) == nullptr) throw std::runtime_error("mkdtemp failed");
  directory_ = directory;
  for (int rank = 0; rank < size; ++rank) start(rank, size, body, options);
}

RankProcesses::~RankProcesses() {
  for (auto& child : children_) {
    if (!child->ended) {
      ::kill(child->pid, SIGKILL);
      await_end(*child, /*may_block=*/true);
    }
    if (child->output_fd >= 0) ::close(child->output_fd);
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void RankProcesses::start(int rank, int size, const std::string& body,
                          const RankProcessOptions& options) {
  auto variables = current_environment();
  variables["RANK"] = variables["LOCAL_RANK"] = absl::StrCat(rank);
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = absl::StrCat(size);
  variables["TESSERA_STORE"] = absl::StrCat("file://", directory_, "/store");
  variables["OMP_NUM_THREADS"] = "1";
  for (const auto& [name, value] : options.environment) variables[name] = value;
  if (const auto own = options.environment_of_rank.find(rank);
      own != options.environment_of_rank.end()) {
    for (const auto& [name, value] : own->second) variables[name] = value;
  }
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) {
    if (!value.empty()) entries.push_back(absl::StrCat(name, "=", value));
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  const FileDescriptor output(ends[1]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  auto child = std::make_unique<Child>();
  child->output_fd = ends[0];
  child->is_executed = must_be_executed(rank, options);
  RankStarter::Rank started = child->is_executed
                                  ? execute(body, entries, output.get())
                                  : RankStarter::instance().start(body, entries, output.get());
  child->pid = started.pid;
  child->end = std::move(started.status);
  children_.push_back(std::move(child));
}

/// Returns true if the rank has ended, and sets its result. `may_block`: waits for the end.
bool RankProcesses::await_end(Child& child, bool may_block) {
  int status = 0;
  if (child.is_executed) {
    if (::waitpid(child.pid, &status, may_block ? 0 : WNOHANG) != child.pid) return false;
  } else {
    pollfd end{child.end.get(), POLLIN, 0};
    if (::poll(&end, 1, may_block ? -1 : 0) <= 0) return false;
    // A starter that was killed sends no status; its ranks are killed with it.
    if (::read(child.end.get(), &status, sizeof(status)) != sizeof(status)) status = SIGKILL;
  }
  child.ended = true;
  child.result.exit_code = exit_code_of(status);
  return true;
}

/// Reads available output, waits at most `wait_ms` for more, and notices ended ranks. Returns true
/// if a rank still runs.
bool RankProcesses::pump(int wait_ms) {
  std::vector<pollfd> handles;
  for (auto& child : children_) {
    if (child->output_fd >= 0) handles.push_back({child->output_fd, POLLIN, 0});
    if (!child->ended) handles.push_back({child->end.get(), POLLIN, 0});
  }
  ::poll(handles.data(), handles.size(), wait_ms);
  bool running = false;
  for (auto& child : children_) {
    char buffer[4096];
    while (child->output_fd >= 0) {
      const ssize_t count = ::read(child->output_fd, buffer, sizeof(buffer));
      if (count > 0) {
        child->result.output.append(buffer, count);
      } else if (count == 0) {
        ::close(std::exchange(child->output_fd, -1));
      } else {
        break;
      }
    }
    if (!child->ended) await_end(*child, /*may_block=*/false);
    running = running || !child->ended || child->output_fd >= 0;
  }
  return running;
}

bool RankProcesses::wait_for_output(int rank, const std::string& text) {
  const Child& child = *children_.at(rank);
  while (!absl::StrContains(child.result.output, text)) {
    if (child.ended && child.output_fd < 0) return false;
    if (Clock::now() - started_ > deadline_) return false;
    pump(20);
  }
  return true;
}

void RankProcesses::kill(int rank) { kill(rank, SIGKILL); }

void RankProcesses::kill(int rank, int signal) {
  if (!children_.at(rank)->ended) ::kill(children_[rank]->pid, signal);
}

pid_t RankProcesses::pid(int rank) const { return children_.at(rank)->pid; }

std::vector<RankResult> RankProcesses::wait() {
  while (pump(20)) {
    if (Clock::now() - started_ <= deadline_) continue;
    for (auto& child : children_) {
      if (child->ended) continue;
      child->result.timed_out = true;
      ::kill(child->pid, SIGKILL);
    }
  }
  std::vector<RankResult> results;
  for (auto& child : children_) results.push_back(child->result);
  return results;
}

std::vector<RankResult> run_rank_processes(int size, const std::string& body,
                                           const RankProcessOptions& options) {
  RankProcesses processes(size, body, options);
  return processes.wait();
}

std::shared_ptr<ProcessGroup> join() {
  ProcessGroupOptions options;
  const char* const timeout = std::getenv("TEST_TIMEOUT_MS");
  options.timeout = std::chrono::milliseconds(timeout == nullptr ? 50000 : std::atoi(timeout));
  return init_process_group(std::move(options));
}

void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

int free_port() {
  return endpoint_of(*TcpAddress::resolve({"127.0.0.1"}, 0).value().listen().value()).port;
}

int run_rank_body_if_asked(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!absl::StartsWith(argument, kFlag)) continue;
    return run_body(argument.substr(std::string(kFlag).size()));
  }
  return serve_as_rank_starter_if_asked(argc, argv, run_body);
}

}  // namespace tessera::internal::testing

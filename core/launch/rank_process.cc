#include "tessera/core/launch/rank_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& text : strings) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

/// Everything that exec needs. It is made before fork(), because the child must not allocate:
/// another thread of the launcher may have held the allocator's lock at the fork().
struct Execution {
  explicit Execution(const RankProgram& program)
      : file(program.file.empty() ? program.arguments[0].c_str() : program.file.c_str()),
        arguments(pointers(program.arguments)),
        environment(pointers(program.environment)) {}

  const char* file;
  std::vector<char*> arguments;
  std::vector<char*> environment;
};

/// Resets signal handlers to the default in the child, because a handler that ran between fork and
/// exec would act as if it were in the launcher. Ignored signals stay ignored.
void drop_handlers() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action;
    if (sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
  }
}

/// Runs in the child between fork and exec, with all signals blocked. Makes system calls only.
[[noreturn]] void become_program(const Execution& execution, const Watcher& watcher, pid_t launcher,
                                 int out, int err, int failure) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // If the launcher died before the call above, no signal will come.
  if (getppid() != launcher) _exit(1);
  watcher.add(getpid());
  drop_handlers();
  // Ignore SIGTTOU, because this group is never the terminal's foreground group: if the user has
  // set `stty tostop`, the first line of output would stop this process.
  if (isatty(out) == 1 || isatty(err) == 1) signal(SIGTTOU, SIG_IGN);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  // Do not inherit the launcher's signal mask: the rank would ignore requests to stop.
  sigset_t none;
  sigemptyset(&none);
  if (null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0 &&
      dup2(err, STDERR_FILENO) >= 0 && sigprocmask(SIG_SETMASK, &none, nullptr) == 0) {
    execvpe(execution.file, execution.arguments.data(), execution.environment.data());
  }
  const int error = errno;
  // The pipe is empty, so this cannot fail while the launcher lives.
  if (write(failure, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

absl::Status no_resources(const std::string& name, const char* what, int error = errno) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot start ", name, ": ", what, ": ", strerror(error),
                   " (see ulimit -n, ulimit -u and the container's pids limit)"));
}

absl::Status cannot_run(const std::string& name, const std::string& program, int error) {
  // With these errors, no other program could be started either.
  if (error == EMFILE || error == ENFILE) return no_resources(name, "no descriptor", error);
  if (error == EAGAIN || error == ENOMEM) return no_resources(name, "no process", error);
  if (error != ENOENT && error != ENOTDIR) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot run '", program, "': ", strerror(error),
                     "; name an executable file (chmod +x), a script with its #! line"));
  }
  std::string hint;
  if (access(program.c_str(), F_OK) == 0) {
    hint = program.find('/') == std::string::npos
               ? absl::StrCat("; did you mean './", program, "'?")
               : "; the file is there, but not the interpreter that it names";
  }
  return absl::NotFoundError(absl::StrCat("cannot find '", program, "'", hint));
}

}  // namespace

absl::StatusOr<RankProcess> RankProcess::start(int rank, const RankProgram& program,
                                               const Watcher& watcher, int out, int err) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return no_resources(program.name, "no pipe");
  const FileDescriptor failure(ends[0]);
  FileDescriptor failure_of_child(ends[1]);
  const Execution execution(program);
  const pid_t launcher = getpid();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  if (pid == 0) {
    become_program(execution, watcher, launcher, out, err, failure_of_child.get());
  }
  const int fork_error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return no_resources(program.name, "no process", fork_error);

  failure_of_child.close();
  int error = 0;
  ssize_t count;
  do {
    // read() returns once the program runs, because exec closes the other end.
    count = read(failure.get(), &error, sizeof(error));
  } while (count < 0 && errno == EINTR);
  if (count == static_cast<ssize_t>(sizeof(error))) {
    watcher.forget(pid);
    waitpid(pid, nullptr, 0);
    return cannot_run(program.name, execution.file, error);
  }
  return RankProcess(rank, program.name, pid);
}

bool RankProcess::notice_group_end() {
  if (!group_is_alive_ || !exit_status_ || kill(-pid_, 0) == 0 || errno != ESRCH) return false;
  group_is_alive_ = false;
  return true;
}

void RankProcess::signal_group(int signal) {
  if (group_is_alive_) kill(-pid_, signal);
}

bool RankProcess::reap_with_group() {
  if (exit_status_) return false;
  siginfo_t seen = {};
  const bool is_ours =
      waitid(P_PID, static_cast<id_t>(pid_), &seen, WEXITED | WNOHANG | WNOWAIT) == 0;
  if (is_ours && seen.si_pid != pid_) return false;
  int status = W_EXITCODE(255, 0);  // code 255, if another thread has reaped the process
  if (is_ours) {
    signal_group(SIGKILL);
    waitpid(pid_, &status, 0);
  }
  group_is_alive_ = false;
  exit_status_ = ExitStatus(status);
  return true;
}

}  // namespace tessera::internal

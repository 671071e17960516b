#include "tessera/tools/run/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::internal {
namespace {

struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;

  bool open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read_end = FileDescriptor(ends[0]);
    write_end = FileDescriptor(ends[1]);
    return true;
  }
};

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& text : strings) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

/// The child's half: between fork and exec.
[[noreturn]] void become_program(const WorkerProgram& program, const Watcher& watcher,
                                 pid_t launcher, const Pipe& out, const Pipe& err,
                                 const Pipe& failure) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The launcher may have died before that line.
  if (getppid() != launcher) _exit(1);
  watcher.add(getpid());
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  // Not what the launcher was started with: a rank would be deaf to requests to stop.
  sigset_t none;
  sigemptyset(&none);
  std::vector<char*> arguments = pointers(program.arguments);
  std::vector<char*> environment = pointers(program.environment);
  if (null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(out.write_end.get(), STDOUT_FILENO) >= 0 &&
      dup2(err.write_end.get(), STDERR_FILENO) >= 0 &&
      sigprocmask(SIG_SETMASK, &none, nullptr) == 0) {
    execvpe(arguments[0], arguments.data(), environment.data());
  }
  const int error = errno;
  // Eight bytes into an empty pipe: it cannot fail while the launcher lives.
  if (write(failure.write_end.get(), &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

absl::Status no_resources(const std::string& name, const char* what, int error = errno) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot start ", name, ": ", what, ": ", strerror(error),
                   " (see ulimit -n, ulimit -u and the container's pids limit)"));
}

absl::Status cannot_run(const std::string& name, const std::string& program, int error) {
  // Of the system's: another program would not run either.
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

void WorkerStream::read_into(Sink& out, size_t limit_bytes) {
  std::array<char, 65536> bytes;
  size_t total = 0;
  while (pipe.is_open() && total < limit_bytes) {
    const ssize_t count = read(pipe.get(), bytes.data(), bytes.size());
    if (count > 0) {
      const std::string_view text(bytes.data(), static_cast<size_t>(count));
      log.append(text);
      if (is_shown) lines.add(text, LinePrefixer::Clock::now(), out);
      total += static_cast<size_t>(count);
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else if (count < 0 && errno == EAGAIN) {
      return;
    } else {
      lines.finish(out);
      pipe.close();
    }
  }
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::start(int rank, WorkerProgram program,
                                                      const Watcher& watcher) {
  Pipe out, err, failure;
  if (!out.open() || !err.open() || !failure.open()) return no_resources(program.name, "no pipe");
  for (const Pipe* pipe : {&out, &err}) fcntl(pipe->read_end.get(), F_SETFL, O_NONBLOCK);
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid < 0) return no_resources(program.name, "no process");
  if (pid == 0) become_program(program, watcher, launcher, out, err, failure);

  failure.write_end.close();
  int error = 0;
  ssize_t count;
  do {
    // Ends as soon as the program runs: exec closes the other end.
    count = read(failure.read_end.get(), &error, sizeof(error));
  } while (count < 0 && errno == EINTR);
  if (count == static_cast<ssize_t>(sizeof(error))) {
    watcher.forget(pid);
    return cannot_run(program.name, program.arguments[0], error);
  }
  const auto stream = [&program](FileDescriptor pipe, size_t number) {
    return WorkerStream{std::move(pipe), LinePrefixer(program.prefix),
                        std::move(program.logs[number]), program.is_shown[number]};
  };
  return std::unique_ptr<Worker>(new Worker(rank, program.name, pid,
                                            stream(std::move(out.read_end), 0),
                                            stream(std::move(err.read_end), 1)));
}

Worker::Worker(int rank, std::string name, pid_t pid, WorkerStream out, WorkerStream err)
    : rank_(rank), name_(std::move(name)), pid_(pid), out_(std::move(out)), err_(std::move(err)) {}

bool Worker::notice_group_end() {
  if (!group_is_alive_ || !ending_ || kill(-pid_, 0) == 0 || errno != ESRCH) return false;
  group_is_alive_ = false;
  return true;
}

void Worker::signal_group(int signal) {
  if (group_is_alive_) kill(-pid_, signal);
}

}  // namespace tessera::internal

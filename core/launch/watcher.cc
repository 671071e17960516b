#include "tessera/core/launch/watcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <limits>
#include <set>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/launch/store_directory.h"
#include "tessera/core/process/system_refusal.h"

namespace tessera::internal {
namespace {

/// What goes through the pipe: far below PIPE_BUF, so several writers do not mix.
struct Record {
  int32_t group;
  int32_t is_alive;
};

void send(int fd, Record record) {
  ssize_t count;
  do {
    count = write(fd, &record, sizeof(record));
  } while (count < 0 && errno == EINTR);
}

/// The watcher's whole life, with all signals blocked. `pipe` is not one of the three standard
/// descriptors.
[[noreturn]] void watch(int pipe, const std::string& directory) {
  setsid();
  prctl(PR_SET_NAME, "tessera-watch");
  // Neither the launcher's output nor its folder may stay in use because of this process.
  const int null = open("/dev/null", O_RDWR);
  for (const int fd : {0, 1, 2}) dup2(null, fd);
  dup2(pipe, 3);
  close_range(4, std::numeric_limits<unsigned>::max(), 0);
  if (chdir("/") != 0) _exit(1);

  std::set<pid_t> groups;
  Record record;
  ssize_t count;
  while ((count = read(3, &record, sizeof(record))) != 0) {
    if (count != static_cast<ssize_t>(sizeof(record))) continue;
    if (record.is_alive != 0) {
      groups.insert(record.group);
    } else {
      groups.erase(record.group);
    }
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  remove_store_directory(directory);
  _exit(0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Watcher>> Watcher::start(const std::string& directory) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot open a pipe: ", system_refusal("pipe2", errno)));
  }
  FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  if (pid != 0) sigprocmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start the watcher process: ", strerror(errno), " (see ulimit -u)"));
  }
  if (pid == 0) {
    write_end.close();
    watch(read_end.get(), directory);
  }
  return std::unique_ptr<Watcher>(new Watcher(pid, std::move(write_end)));
}

void Watcher::add(pid_t group) const { send(pipe_.get(), {group, 1}); }

void Watcher::forget(pid_t group) const { send(pipe_.get(), {group, 0}); }

void Watcher::finish() {
  // Kernels before 5.3 have none: without the descriptor, wait without limit.
  const FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  pipe_.close();
  pollfd end{process.get(), POLLIN, 0};
  if (process.is_open() && poll(&end, 1, 5000) != 1) return;
  waitpid(pid_, nullptr, 0);
}

}  // namespace tessera::internal

#include "tessera/core/launch/watcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
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

/// A message to the watcher.
struct Record {
  int32_t group;
  int32_t is_alive;
};
// The Record::group by which the launcher says that it no longer needs the watcher.
constexpr int32_t kEnd = 0;

void tell(int fd, Record record) {
  ssize_t count;
  do {
    // MSG_NOSIGNAL, because the watcher may have been killed.
    count = ::send(fd, &record, sizeof(record), MSG_NOSIGNAL);
  } while (count < 0 && errno == EINTR);
}

/// Blocks until the next record. Returns false at kEnd, or once the launcher has ended and no
/// record is left. The end of the stream alone would not show that the launcher has ended, because
/// a fork of the launcher may keep the launcher's socket open.
bool receive(int fd, int launcher, Record& record) {
  while (true) {
    pollfd ready[] = {{fd, POLLIN, 0}, {launcher, POLLIN, 0}};
    if (poll(ready, 2, -1) < 0) continue;  // interrupted
    if (ready[0].revents == 0) return false;
    const ssize_t count = read(fd, &record, sizeof(record));
    if (count == 0) return false;
    if (count == static_cast<ssize_t>(sizeof(record))) return record.group != kEnd;
  }
}

/// Runs the watcher, with all signals blocked, until it exits. `socket` is not a standard
/// descriptor. `launcher` is a pidfd of the launcher; -1 if the kernel has no pidfds.
[[noreturn]] void watch(int socket, int launcher, const std::string& directory) {
  setsid();
  prctl(PR_SET_NAME, "tessera-watch");
  // This process must keep neither the launcher's output nor its working directory in use.
  const int null = open("/dev/null", O_RDWR);
  for (const int fd : {0, 1, 2}) dup2(null, fd);
  // Move both descriptors above 4 first, because one of them may have the number that the other
  // gets.
  socket = fcntl(socket, F_DUPFD, 5);
  if (socket < 0) _exit(1);  // no descriptor is left: the job goes on without a watcher
  launcher = launcher < 0 ? -1 : fcntl(launcher, F_DUPFD, 5);
  dup2(socket, 3);
  if (launcher >= 0) launcher = dup2(launcher, 4);
  close_range(5, std::numeric_limits<unsigned>::max(), 0);
  if (chdir("/") != 0) _exit(1);

  std::set<pid_t> groups;
  Record record;
  while (receive(3, launcher, record)) {
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
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot open a pair of sockets: ", system_refusal("socketpair", errno)));
  }
  FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  const FileDescriptor launcher(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
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
    watch(read_end.get(), launcher.is_open() ? launcher.get() : -1, directory);
  }
  return std::unique_ptr<Watcher>(new Watcher(pid, std::move(write_end)));
}

void Watcher::add(pid_t group) const { tell(socket_.get(), {group, 1}); }

void Watcher::forget(pid_t group) const { tell(socket_.get(), {group, 0}); }

void Watcher::finish() {
  // Kernels before 5.3 have no pidfds; then wait without a limit.
  const FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  tell(socket_.get(), {kEnd, 0});
  socket_.close();
  pollfd end{process.get(), POLLIN, 0};
  if (process.is_open() && poll(&end, 1, 5000) != 1) return;
  waitpid(pid_, nullptr, 0);
}

}  // namespace tessera::internal

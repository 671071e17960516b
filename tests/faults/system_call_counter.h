#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace tessera::internal::testing {

/// Sends the thread that made it a signal at the n-th entry or exit of a system call. A child
/// process counts by ptrace, as a debugger does, so the counted code is not changed. Make it before
/// there are groups; the child ends with this process.
class SystemCallCounter {
 public:
  explicit SystemCallCounter(int signal) {
    int order[2], answer[2];
    if (::pipe(order) != 0 || ::pipe(answer) != 0) throw std::runtime_error("pipe failed");
    const pid_t counted = ::getpid();
    const auto thread = static_cast<pid_t>(::syscall(SYS_gettid));
    const pid_t child = ::fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != counted) ::_exit(0);
      ::close(order[1]);
      count(counted, thread, signal, order[0], answer[1]);
    }
    ::prctl(PR_SET_PTRACER, child, 0, 0, 0);  // needed where only parents may trace
    ::close(order[0]);
    ::close(answer[1]);
    order_ = order[1];
    answer_ = answer[0];
  }
  ~SystemCallCounter() {
    ::close(order_);
    ::close(answer_);
  }
  SystemCallCounter(const SystemCallCounter&) = delete;
  SystemCallCounter& operator=(const SystemCallCounter&) = delete;

  /// Counting begins when this returns. Throws if the kernel does not allow it.
  void start(int count) {
    int error = EPIPE;
    if (::write(order_, &count, sizeof(count)) != sizeof(count) ||
        ::read(answer_, &error, sizeof(error)) != sizeof(error) || error != 0) {
      throw std::runtime_error(std::string("cannot count system calls: ptrace said ") +
                               std::strerror(error));
    }
  }

 private:
  /// Runs the child. It makes only system calls, because it may be a copy of a process with
  /// threads.
  [[noreturn]] static void count(pid_t process, pid_t thread, int signal, int order, int answer) {
    int left = 0;
    if (::read(order, &left, sizeof(left)) != sizeof(left)) ::_exit(0);
    int status = 0;
    int error = 0;
    if (::ptrace(PTRACE_SEIZE, thread, nullptr, PTRACE_O_TRACESYSGOOD) != 0 ||
        ::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) != 0 ||
        ::waitpid(thread, &status, __WALL) != thread) {
      error = errno;
    }
    if (::write(answer, &error, sizeof(error)) != sizeof(error) || error != 0) ::_exit(0);
    long passed_on = 0;
    while (left > 0) {
      if (::ptrace(PTRACE_SYSCALL, thread, nullptr, passed_on) != 0) ::_exit(0);
      if (::waitpid(thread, &status, __WALL) != thread || !WIFSTOPPED(status)) ::_exit(0);
      const int stop = WSTOPSIG(status);
      const bool is_event = status >> 16 != 0;
      passed_on = is_event || stop == (SIGTRAP | 0x80) ? 0 : stop;
      if (stop == (SIGTRAP | 0x80)) --left;
    }
    ::syscall(SYS_tgkill, process, thread, signal);
    ::ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
    ::_exit(0);
  }

  int order_ = -1;
  int answer_ = -1;
};

}  // namespace tessera::internal::testing

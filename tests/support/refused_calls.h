#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

namespace tessera::internal::testing {

/// A system call that fails with errno `error`, whatever its arguments.
struct RefusedCall {
  int number;  ///< SYS_flock
  int error;
};

/// The system call that libc's chmod() makes.
#ifdef SYS_chmod
inline constexpr int kChmodCall = SYS_chmod;
#else
inline constexpr int kChmodCall = SYS_fchmodat;
#endif

/// Makes `calls` fail in this thread, in the threads that it starts and in its children,
/// permanently; needs no privileges. Returns false if the kernel does not support it (seccomp).
inline bool refuse_calls(const std::vector<RefusedCall>& calls) {
  std::vector<sock_filter> filter{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offsetof(seccomp_data, nr)))};
  for (const RefusedCall& call : calls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call.number), 0, 1));
    filter.push_back(
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(call.error)));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{.len = static_cast<unsigned short>(filter.size()),
                           .filter = filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// Runs `body` in a new thread in which `calls` fail. Throws what it throws.
inline void run_with_refused_calls(const std::vector<RefusedCall>& calls,
                                   const std::function<void()>& body) {
  std::exception_ptr error;
  std::thread thread([&] {
    try {
      if (!refuse_calls(calls)) throw std::runtime_error("this kernel has no seccomp filters");
      body();
    } catch (...) {
      error = std::current_exception();
    }
  });
  thread.join();
  if (error != nullptr) std::rethrow_exception(error);
}

/// Whether refuse_calls() works here.
inline bool can_refuse_calls() {
  bool can = false;
  std::thread([&] { can = refuse_calls({}); }).join();
  return can;
}

}  // namespace tessera::internal::testing

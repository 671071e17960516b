#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include <ATen/record_function.h>

#include "tessera/tests/faults/counted_group.h"
#include "tessera/tests/faults/random_case.h"
#include "tessera/tests/faults/system_call_counter.h"

namespace tessera::internal::testing {

/// Prints one line with the time. A single write, so that a signal handler may call it.
inline void say_with_time(const char* what) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  char line[80];
  const int length = std::snprintf(line, sizeof(line), "\n%s at %lld ns\n", what,
                                   static_cast<long long>(now.tv_sec) * 1000000000 + now.tv_nsec);
  if (::write(STDOUT_FILENO, line, static_cast<size_t>(length)) != length) ::_exit(9);
}

/// Which ways to end are possible at a fault's moment.
enum class Leave : uint8_t { kByAnyMeans, kAtOnce };

/// Commits the fault; returns only from kStop, after the process is resumed.
inline void commit(Fault fault, Leave leave) {
  if (fault != Fault::kStop) ::prctl(PR_SET_DUMPABLE, 0);  // no core file
  say_with_time("fault");
  switch (fault) {
    case Fault::kKill:
      ::kill(::getpid(), SIGKILL);
      break;
    case Fault::kSegv:
      ::signal(SIGSEGV, SIG_DFL);
      ::raise(SIGSEGV);
      break;
    case Fault::kStop:
      ::kill(::getpid(), SIGSTOP);
      break;
    case Fault::kExit0:
    case Fault::kExit3: {
      const int code = fault == Fault::kExit0 ? 0 : 3;
      if (leave == Leave::kAtOnce) ::_exit(code);
      std::exit(code);
    }
    case Fault::kThrow:
      throw std::runtime_error("out of data");
    case Fault::kTerminate:
      std::thread([] { throw std::runtime_error("thrown in a thread"); }).join();
  }
}

/// A rank's part in the fault: none, unless it is the victim.
class Victim {
 public:
  static constexpr int kAnyStep = -2;

  Victim(const RandomCase& drawn, bool is_victim)
      : drawn_(drawn),
        is_victim_(is_victim),
        countdown_(std::make_shared<CallCountdown>(
            drawn.fault == Fault::kThrow ? CallCountdown::Reads::kLeftOut
                                         : CallCountdown::Reads::kCounted,
            [this] { commit(drawn_.fault, Leave::kByAnyMeans); })) {
    if (!is_victim_ || !drawn_.counts_system_calls()) return;
    fault_of_signal = drawn_.fault;
    struct sigaction action {};
    action.sa_handler = [](int) { commit(fault_of_signal, Leave::kAtOnce); };
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGUSR2, &action, nullptr);
    system_calls_ = std::make_unique<SystemCallCounter>(SIGUSR2);
  }
  ~Victim() {
    if (operators_ != 0) at::removeCallback(operators_);
  }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

  /// Call it when the program reaches this point.
  void reach(FaultMoment moment, int step = kAnyStep) const {
    if (!is_now(moment, step)) return;
    commit(drawn_.fault, Leave::kByAnyMeans);
  }
  /// Starts counting here if the drawn fault needs it.
  void count_system_calls(FaultMoment moment, int step = kAnyStep) {
    if (is_now(moment, step)) system_calls_->start(drawn_.count);
  }
  void count_collectives(int step) {
    if (is_now(FaultMoment::kCollective, step)) countdown_->start(drawn_.count, drawn_.is_after);
  }
  void count_operators(int step) {
    if (!is_now(FaultMoment::kOperator, step)) return;
    operators_left = drawn_.count;
    fault_of_operator = drawn_.fault;
    operators_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction&) {
                                     if (operators_left > 0 && --operators_left == 0) {
                                       commit(fault_of_operator, Leave::kAtOnce);
                                     }
                                     return std::unique_ptr<at::ObserverContext>();
                                   }).scopes({at::RecordScope::FUNCTION}));
  }
  bool is_now(FaultMoment moment, int step) const {
    return is_victim_ && drawn_.moment == moment && (step == kAnyStep || drawn_.step == step);
  }

  /// `world`, with its calls counted.
  std::shared_ptr<ProcessGroup> counted(std::shared_ptr<ProcessGroup> world) const {
    return std::make_shared<CountedGroup>(std::move(world), countdown_);
  }

 private:
  // For callbacks without arguments.
  static inline Fault fault_of_signal = Fault::kKill;
  static inline Fault fault_of_operator = Fault::kKill;
  static inline int operators_left = 0;

  const RandomCase drawn_;
  const bool is_victim_;
  const std::shared_ptr<CallCountdown> countdown_;
  std::unique_ptr<SystemCallCounter> system_calls_;
  at::CallbackHandle operators_ = 0;
};

}  // namespace tessera::internal::testing

#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <vector>

#include "tessera/rendezvous.h"
#include "tessera/tests/support/configuration.h"

namespace tessera::internal::testing {

/// The fault of a rank.
enum class Fault : uint8_t { kKill, kSegv, kStop, kExit0, kExit3, kThrow, kTerminate };

/// The moment of the fault.
enum class FaultMoment : uint8_t {
  kBeforeMeeting,   ///< before init_process_group
  kMeeting,         ///< at a system call in it
  kAfterMeeting,    ///< right after it
  kCollective,      ///< before or after a collective or read, in parallelize() or in training
  kOperator,        ///< at an ATen operator of training
  kSystemCall,      ///< at a system call of training, such as a wait for the others
  kBeforeBackward,  ///< this and the next two: in user code of a step
  kInBackward,
  kBeforeStep,
  kAfterLastStep,  ///< the engine still exists
  kDestruction,    ///< at a system call after that
  kEngineGone,     ///< the group still exists
  kGroupGone,
};

/// A job and its fault, drawn from `seed`: the same in the driver and in every rank.
struct RandomCase {
  uint64_t seed = 0;
  int size = 2;
  Configuration configuration = {};
  ProcessGroupOptions::Lane lane = ProcessGroupOptions::Lane::kInline;
  bool is_launched = false;  ///< started by tessera-run
  int victim = 0;
  Fault fault = Fault::kKill;
  FaultMoment moment = FaultMoment::kBeforeMeeting;
  /// The training step of the fault, or of the beginning of counting; -1: before training.
  int step = 0;
  int count = 1;          ///< number of calls, operators or stops at system calls until the fault
  bool is_after = false;  ///< for a collective: after it

  /// It is possible that the ranks have not met.
  bool is_at_start() const { return moment <= FaultMoment::kMeeting; }
  /// It is possible that the ranks do not need each other any more.
  bool is_at_end() const { return moment >= FaultMoment::kAfterLastStep; }
  /// The process itself ends badly.
  bool ends_badly() const { return fault != Fault::kStop && fault != Fault::kExit0; }
  bool counts_system_calls() const {
    return moment == FaultMoment::kMeeting || moment == FaultMoment::kSystemCall ||
           moment == FaultMoment::kDestruction;
  }
  /// Only the time-out can detect the fault: the victim does not end, or never came.
  bool needs_time_out() const {
    return fault == Fault::kStop || moment == FaultMoment::kMeeting ||
           (moment == FaultMoment::kBeforeMeeting && !(is_launched && ends_badly()));
  }
  /// The group's time-out. Longer than every bound of the driver unless it is needed, so that a
  /// rank that learns of the fault within the bounds learns of it otherwise.
  std::chrono::milliseconds timeout() const {
    return needs_time_out() ? std::chrono::seconds(3) : std::chrono::seconds(600);
  }
};

/// A generator with the same numbers on every machine.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}

  /// From 0 to sides - 1.
  int roll(int sides) { return static_cast<int>(next() % static_cast<uint64_t>(sides)); }
  template <typename T>
  const T& pick(const std::vector<T>& all) {
    return all[static_cast<size_t>(roll(static_cast<int>(all.size())))];
  }

 private:
  uint64_t next() {  // splitmix64
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

/// Whether a fault is possible then: a signal handler can neither throw nor run exit()'s handlers,
/// and exceptions of an operator's callback are swallowed.
inline bool suits(Fault fault, FaultMoment moment) {
  switch (moment) {
    case FaultMoment::kMeeting:
    case FaultMoment::kSystemCall:
    case FaultMoment::kDestruction:
      return fault != Fault::kThrow && fault != Fault::kTerminate;
    case FaultMoment::kOperator:
      return fault != Fault::kThrow;
    default:
      return true;
  }
}

/// The moments that suit a fault; those that are frequent in a program appear several times.
inline std::vector<FaultMoment> moments_of(Fault fault) {
  std::vector<FaultMoment> all;
  for (const FaultMoment moment :
       {FaultMoment::kBeforeMeeting, FaultMoment::kMeeting, FaultMoment::kMeeting,
        FaultMoment::kAfterMeeting, FaultMoment::kCollective, FaultMoment::kCollective,
        FaultMoment::kCollective, FaultMoment::kOperator, FaultMoment::kOperator,
        FaultMoment::kOperator, FaultMoment::kSystemCall, FaultMoment::kSystemCall,
        FaultMoment::kBeforeBackward, FaultMoment::kInBackward, FaultMoment::kBeforeStep,
        FaultMoment::kAfterLastStep, FaultMoment::kDestruction, FaultMoment::kEngineGone,
        FaultMoment::kGroupGone}) {
    if (suits(fault, moment)) all.push_back(moment);
  }
  return all;
}

/// The largest count: it reaches through some steps of the smallest models.
inline int largest_count(FaultMoment moment) {
  switch (moment) {
    case FaultMoment::kMeeting:
      return 300;
    case FaultMoment::kCollective:
      return 40;
    case FaultMoment::kOperator:
      return 150;
    case FaultMoment::kSystemCall:
      return 300;
    case FaultMoment::kDestruction:
      return 60;
    default:
      return 1;
  }
}

inline RandomCase draw_case(uint64_t seed) {
  Dice dice(seed);
  RandomCase drawn;
  drawn.seed = seed;
  drawn.size = 2 + dice.roll(3);
  drawn.configuration = dice.pick(configurations_of_world(drawn.size));
  if (dice.roll(4) == 0) drawn.lane = ProcessGroupOptions::Lane::kThread;
  drawn.is_launched = dice.roll(2) == 0;
  drawn.victim = dice.roll(drawn.size);
  drawn.fault = static_cast<Fault>(dice.roll(static_cast<int>(Fault::kTerminate) + 1));
  drawn.moment = dice.pick(moments_of(drawn.fault));
  // Collectives are counted from parallelize() on, too; hooks need an existing model.
  drawn.step = drawn.moment == FaultMoment::kCollective ? dice.roll(4) - 1 : dice.roll(3);
  drawn.count = 1 + dice.roll(largest_count(drawn.moment));
  drawn.is_after = drawn.moment == FaultMoment::kCollective && dice.roll(2) == 0;
  return drawn;
}

inline const char* name_of(Fault fault) {
  static constexpr const char* kNames[] = {"SIGKILL", "SIGSEGV", "SIGSTOP",       "exit(0)",
                                           "exit(3)", "throw",   "std::terminate"};
  return kNames[static_cast<int>(fault)];
}

inline const char* name_of(FaultMoment moment) {
  static constexpr const char* kNames[] = {"before the meeting",
                                           "at a system call of the meeting",
                                           "after the meeting",
                                           "at a collective",
                                           "at an operator",
                                           "at a system call of training",
                                           "before backward",
                                           "in backward",
                                           "before step()",
                                           "after the last step",
                                           "at a system call of the destruction",
                                           "when the engine is gone",
                                           "when the group is gone"};
  return kNames[static_cast<int>(moment)];
}

inline std::ostream& operator<<(std::ostream& out, const RandomCase& drawn) {
  out << "seed " << drawn.seed << ": " << (drawn.is_launched ? "tessera-run, " : "bare, ")
      << drawn.size << " ranks, " << drawn.configuration.name
      << (drawn.lane == ProcessGroupOptions::Lane::kThread ? ", lane thread" : "") << "; "
      << name_of(drawn.fault) << " of rank " << drawn.victim << " " << name_of(drawn.moment);
  if (largest_count(drawn.moment) > 1) {
    out << ", " << (drawn.is_after ? "after" : "before") << " number " << drawn.count;
  }
  if (!drawn.is_at_start() && !drawn.is_at_end()) out << ", from step " << drawn.step << " on";
  return out << " (repeat: TESSERA_RANDOM_KILLS=1 TESSERA_RANDOM_KILLS_SEED=" << drawn.seed << ")";
}

}  // namespace tessera::internal::testing

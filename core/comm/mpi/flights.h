#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/core/comm/flight_recorder/flight_dump.h"
#include "tessera/core/comm/flight_recorder/flight_ring.h"
#include "tessera/core/comm/mpi/envelope.h"

namespace tessera::internal::mpi {

class World;

/// This rank's flight recorder, and what other ranks tell of theirs. Beside ring() the progress
/// thread's.
///
/// Note [Flights over MPI]
/// ~~~~~~~~~~~~~~~~~~~~~~~
/// Ranks of several hosts share no memory. So a rank that writes down what all have called, or says
/// whom it waits for, asks the others, whose progress threads answer with their last calls and what
/// their process does, whatever their other threads are in. Who does not answer within kPatience is
/// stopped, gone or cut off; a process of this host can then be looked at. The rank stays in the
/// world until its questions are over, and answers until it has said that it ends. Nobody is asked
/// where an application has an MPI of its own at MPI_THREAD_SERIALIZED (Progress::may_look()).
///
/// After a failure each rank that finds it by itself asks, at once. Who is asked before it has
/// asked leaves the writing to that rank, and of two that ask each other the lower one writes. Its
/// file has all answers, for after a failure ranks leave the world when all of them ask no more, or
/// after kPatience.
class Flights {
 public:
  using Clock = std::chrono::steady_clock;
  /// What was asked for, in the order of the ranks.
  using Told = std::function<void(const std::vector<RankFlight>& ranks)>;
  static constexpr auto kPatience = std::chrono::milliseconds(800);

  explicit Flights(World& world) : world_(world), ring_(std::make_shared<FlightRing>()) {}

  const std::shared_ptr<FlightRing>& ring() const { return ring_; }

  /// Asks ranks of the world for their last `count` calls each. `told` is called once.
  void ask(const std::vector<int>& ranks, uint64_t count, Told told);
  /// Writes down what all ranks have called, where TESSERA_FLIGHT_DUMP says so.
  void dump(const std::string& cause);
  /// A rank asks this one.
  void answer(int from, const Envelope& question);
  /// A part of an answer.
  void take(int from, const Envelope& part);
  /// Rank `from` has left the world: it does not answer any more.
  void note_ended(int from);
  /// Rank `from` asks nothing any more.
  void note_asks_no_more(int from) { ask_no_more_.insert(from); }
  void advance(Clock::time_point now);
  /// Whether this rank, which would leave the world, has to stay for questions.
  bool stays(Clock::time_point now);
  /// Whether something is awaited.
  bool is_busy() const { return !questions_.empty() || is_staying_; }
  /// Nobody is waited for any longer.
  void give_up() { advance(Clock::time_point::max()); }

 private:
  struct Asked {
    RankFlight flight;
    bool has_answered = false;
    bool is_over = false;  // has answered, or never will
  };
  struct Question {
    int64_t number;
    Clock::time_point deadline;
    std::vector<Asked> ranks;
    Told told;
    bool is_dump;
  };

  void ask(const std::vector<int>& ranks, uint64_t count, Told told, bool is_dump);
  RankFlight own(uint64_t count) const;
  void describe_silent(RankFlight& flight) const;
  void end(Question& question);
  void leave_dump_to(int rank);
  bool may_ask(int rank) const;

  World& world_;
  const std::string directory_ = flight_dump_directory();  // "": there are no dumps
  const std::shared_ptr<FlightRing> ring_;
  std::list<Question> questions_;
  int64_t last_number_ = 0;
  bool has_writer_ = false;  // of the dump: this rank or another
  bool is_staying_ = false;
  std::optional<Clock::time_point> stays_until_;
  std::set<int> ask_no_more_;
};

}  // namespace tessera::internal::mpi

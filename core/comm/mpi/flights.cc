#include "tessera/core/comm/mpi/flights.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/mpi/progress.h"
#include "tessera/core/comm/mpi/world.h"
#include "tessera/core/process/process_status.h"

namespace tessera::internal::mpi {
namespace {

/// What fits into an envelope of an answer. Plain bytes.
struct Part {
  static constexpr size_t kRecords = 2;

  uint64_t begun = 0;
  int32_t pid = 0;
  uint16_t records = 0;
  uint16_t is_last = 0;
  char state[48] = {};
  std::array<FlightRecord, kRecords> record;
};
static_assert(std::is_trivially_copyable_v<Part>);
static_assert(sizeof(Part) <= Envelope::kPayloadBytes);

/// Of this process, whose other threads may be at work or wait.
std::string own_state() {
  const std::optional<ProcessStatus> status = process_status(::getpid());
  const std::string text = status.has_value() ? status->describe() : "";
  return text.empty() ? "runs" : absl::StrCat("runs (", text, ")");
}

}  // namespace

RankFlight Flights::own(uint64_t count) const {
  return {.rank = world_.rank(),
          .pid = ::getpid(),
          .host = world_.host_of(world_.rank()),
          .state = own_state(),
          .begun = ring_->begun(),
          .records = ring_->last(count)};
}

void Flights::ask(const std::vector<int>& ranks, uint64_t count, Told told) {
  ask(ranks, count, std::move(told), /*is_dump=*/false);
}

void Flights::ask(const std::vector<int>& ranks, uint64_t count, Told told, bool is_dump) {
  Question& question = questions_.emplace_back(
      Question{++last_number_, Clock::now() + kPatience, {}, std::move(told), is_dump});
  Envelope asked;
  asked.kind = Envelope::Kind::kAskFlight;
  asked.sequence = question.number;
  asked.slice = is_dump ? 1 : 0;
  asked.signature.numel = static_cast<int64_t>(count);
  const Progress& progress = Progress::instance();
  for (const int rank : ranks) {
    Asked& one = question.ranks.emplace_back();
    one.flight = {.rank = rank, .pid = world_.pid_of(rank), .host = world_.host_of(rank)};
    // The call that waits may end before an answer comes, and then an application may call MPI.
    one.is_over = rank == world_.rank() || world_.has_ended(rank) || !progress.may_look();
    if (rank == world_.rank()) {
      one.flight = own(count);
      one.has_answered = true;
    }
    if (!one.is_over) world_.send(asked, rank);
  }
}

void Flights::dump(const std::string& cause) {
  if (directory_.empty() || has_writer_) return;
  has_writer_ = true;  // once
  std::vector<int> all(static_cast<size_t>(world_.size()));
  std::iota(all.begin(), all.end(), 0);
  const auto write = [directory = directory_, cause, rank = world_.rank()](const auto& ranks) {
    write_flight_dump(directory, rank, ranks, cause, "flight-mpi-rank");
  };
  ask(all, FlightRing::kRecords, write, /*is_dump=*/true);
}

void Flights::answer(int from, const Envelope& question) {
  if (question.slice != 0) leave_dump_to(from);
  const RankFlight told =
      own(static_cast<uint64_t>(std::max<int64_t>(question.signature.numel, 0)));
  Envelope answer;
  answer.kind = Envelope::Kind::kFlight;
  answer.sequence = question.sequence;
  size_t next = 0;
  do {
    Part part;
    part.begun = told.begun;
    part.pid = told.pid;
    told.state.copy(part.state, sizeof(part.state) - 1);
    while (part.records < Part::kRecords && next < told.records.size()) {
      part.record[part.records++] = told.records[next++];
    }
    part.is_last = next == told.records.size() ? 1 : 0;
    std::memcpy(answer.payload(), &part, sizeof(part));
    world_.send(answer, from);
  } while (next < told.records.size());
}

void Flights::leave_dump_to(int rank) {
  // Of two that ask each other, the lower one hears no answer before it has been asked.
  if (has_writer_ && rank > world_.rank()) return;
  has_writer_ = true;
  questions_.remove_if([](const Question& one) { return one.is_dump; });
}

void Flights::take(int from, const Envelope& envelope) {
  const auto question =
      std::find_if(questions_.begin(), questions_.end(),
                   [&](const Question& one) { return one.number == envelope.sequence; });
  if (question == questions_.end()) return;
  const auto asked = std::find_if(question->ranks.begin(), question->ranks.end(),
                                  [&](const Asked& one) { return one.flight.rank == from; });
  if (asked == question->ranks.end()) return;
  Part part;
  std::memcpy(&part, envelope.payload(), sizeof(part));
  RankFlight& flight = asked->flight;
  flight.begun = part.begun;
  flight.pid = part.pid;
  flight.state.assign(part.state, ::strnlen(part.state, sizeof(part.state)));
  const size_t records = std::min<size_t>(part.records, Part::kRecords);
  flight.records.insert(flight.records.end(), part.record.begin(), part.record.begin() + records);
  asked->has_answered = asked->is_over = part.is_last != 0;
}

void Flights::note_ended(int from) {
  for (Question& question : questions_) {
    for (Asked& one : question.ranks) {
      if (one.flight.rank == from) one.is_over = true;
    }
  }
}

bool Flights::may_ask(int rank) const {
  return rank != world_.rank() && ask_no_more_.count(rank) == 0 && !world_.has_ended(rank);
}

bool Flights::stays(Clock::time_point now) {
  is_staying_ = false;
  if (!questions_.empty()) return true;
  const bool are_dumped = !directory_.empty() && Progress::instance().may_look();
  if (!are_dumped || world_.any_failure().empty()) return false;
  if (!stays_until_.has_value()) {
    stays_until_ = now + kPatience;
    Envelope envelope;
    envelope.kind = Envelope::Kind::kAsksNoMore;
    world_.send_to_others(envelope);
  }
  for (int rank = 0; rank < world_.size(); ++rank) {
    is_staying_ = is_staying_ || (now < *stays_until_ && may_ask(rank));
  }
  return is_staying_;
}

void Flights::advance(Clock::time_point now) {
  const auto is_over = [now](const Question& question) {
    return now >= question.deadline || std::all_of(question.ranks.begin(), question.ranks.end(),
                                                   [](const Asked& one) { return one.is_over; });
  };
  std::list<Question> over;
  for (auto place = questions_.begin(); place != questions_.end();) {
    const auto question = place++;
    if (is_over(*question)) over.splice(over.end(), questions_, question);
  }
  for (Question& question : over) end(question);
}

void Flights::end(Question& question) {
  std::vector<RankFlight> told;
  for (Asked& one : question.ranks) {
    if (!one.has_answered) describe_silent(one.flight);
    told.push_back(std::move(one.flight));
  }
  question.told(told);
}

void Flights::describe_silent(RankFlight& flight) const {
  if (world_.has_ended(flight.rank)) {
    flight.state = "has left";
  } else if (flight.pid != 0 && !flight.host.empty() &&
             flight.host == world_.host_of(world_.rank())) {
    flight.state = process_state(flight.pid);
  } else if (!Progress::instance().may_look()) {
    flight.state = "cannot be asked at MPI_THREAD_SERIALIZED";
  } else {
    flight.state = "does not answer: it is stopped, gone or cut off";
  }
}

}  // namespace tessera::internal::mpi

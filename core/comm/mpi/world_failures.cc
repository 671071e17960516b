// How a world fails, by what, and who is told.
#include <unistd.h>

#include <chrono>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/mpi/link.h"
#include "tessera/core/comm/mpi/world.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/failure_report.h"

namespace tessera::internal::mpi {
namespace {

constexpr auto kBetweenLooksAtHost = std::chrono::milliseconds(100);
// For a collective of several hosts to go on inside this one; before the thrower may end all.
constexpr auto kUntilHostFails = internal::Link::kGrace * 3 / 4;
// For the host of a rank that has ended to tell of it. Who sends to that rank may learn sooner.
constexpr auto kUntilTold = 3 * kBetweenLooksAtHost;

}  // namespace

std::string World::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

bool World::set_failure(std::string_view cause, int author) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.empty()) return false;
  failure_ = cause.empty() ? "no cause given" : cause;
  author_.store(author, std::memory_order_relaxed);
  has_failed_.store(true, std::memory_order_release);
  return true;
}

void World::watch(std::weak_ptr<HostRanks> host) {
  const std::lock_guard<std::mutex> lock(mutex_);
  host_ = std::move(host);
}

std::shared_ptr<HostRanks> World::host() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return host_.lock();
}

std::shared_ptr<FlightRing> World::flights() const {
  const std::shared_ptr<HostRanks> host = this->host();
  return host == nullptr ? flights_ : host->flights();
}

void World::dump_flights(std::string_view cause) {
  if (const std::shared_ptr<HostRanks> host = this->host()) return host->dump_flights(cause);
  if (flight_directory_.empty() || std::exchange(has_dumped_, true)) return;
  const RankFlight own{.rank = rank(),
                       .pid = ::getpid(),
                       .host = place(rank()).host,
                       .state = "runs",
                       .begun = flights_->begun(),
                       .records = flights_->last()};
  write_flight_dump(flight_directory_, rank(), {own}, cause, "flight-mpi-rank");
}

void World::tell_failure() {
  const std::string cause = failure();
  dump_flights(cause);
  const std::shared_ptr<HostRanks> host = this->host();
  const bool is_lost = host != nullptr && !host->lost_rank().empty();
  Envelope envelope;
  envelope.kind = is_lost ? Envelope::Kind::kLost : Envelope::Kind::kFailed;
  envelope.set_cause(cause);
  send_to_others(envelope);
  fail_host();
}

/// The failure of a group that this rank has not made yet; "" if none has come. A failure of the
/// world that comes after it comes of it.
std::string World::early_failure() const {
  for (const auto& [key, envelopes] : early_) {
    for (const Received& one : envelopes) {
      if (one.envelope.kind == Envelope::Kind::kFailed) return std::string(one.envelope.cause());
    }
  }
  return "";
}

/// The ranks of this host hear of it a little later, for a collective of several hosts goes on
/// among them.
void World::take_failure(int from, const Envelope& envelope) {
  const std::string early = early_failure();
  const std::string cause = early.empty() ? std::string(envelope.cause()) : early;
  const bool is_lost = envelope.kind == Envelope::Kind::kLost;
  if (!set_failure(cause, is_lost ? -1 : from)) return;
  dump_flights(cause);
  if (is_lost) return fail_host();
  host_fails_at_ = Clock::now() + kUntilHostFails;
}

/// An error of MPI itself, or of this rank's part in a call, which the others wait for.
void World::fail_by(const std::exception& error) {
  if (!has_failed()) await_cause();
  const std::string cause = absl::StrCat(
      is_ready() ? absl::StrCat("rank ", rank(), " failed: ") : std::string(), error_text(error));
  if (!set_failure(cause)) return;
  report_failure(-1, cause);
  try {
    if (is_ready()) tell_failure();
  } catch (...) {  // what failed once may fail again; peers then time out
  }
}

/// MPI does not tell that a process has ended, and ranks may wait for others that wait for it. When
/// this rank has ended, who was the first to see all ranks' ends may be gone.
void World::look_at_host(Clock::time_point now) {
  if (now < next_look_at_host_ || !is_ready() || ended_) return;
  next_look_at_host_ = now + kBetweenLooksAtHost;
  fail_if_lost();
}

/// Also where the ranks of this host have failed by themselves.
void World::fail_if_lost() {
  const std::shared_ptr<HostRanks> host = this->host();
  const std::string cause = host == nullptr ? "" : host->failure();
  if (!cause.empty() && set_failure(cause)) tell_failure();
}

/// An error of MPI's may come of a rank's end, of which its host tells.
void World::await_cause() {
  if (!is_ready() || host() == nullptr) return;
  for (const auto end = Clock::now() + kUntilTold; !has_failed() && Clock::now() < end;) {
    try {
      fail_if_lost();
      look();
    } catch (...) {  // another one
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void World::fail_host() {
  host_fails_at_ = Clock::time_point::max();
  if (const std::shared_ptr<HostRanks> host = this->host())
    host->fail(failure(), /*is_author=*/false);
}

void World::abort_all() {
  // Of a duplicate, MPICH tells its ranks one by one, and those that do not call MPI do not hear
  // it; of MPI_COMM_WORLD it tells the launcher, which ends them.
  const bool is_of_all = comm_ == calls_.world();
  calls_.abort(is_ready() && !is_of_all ? communicator_->comm() : comm_, 1);
}

}  // namespace tessera::internal::mpi

#include "tessera/core/comm/shm/world.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <optional>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/process/available_cores.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/core/process/process_status.h"
#include "tessera/core/process/standard_streams.h"

namespace tessera::internal::shm {
namespace {

// How long a process may take from closing its files to its end, while it frees its memory.
constexpr auto kEnding = std::chrono::milliseconds(5000);

FileDescriptor open_pidfd(int pid) {
  return FileDescriptor(
      above_standard_streams(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))));
}

}  // namespace

std::shared_ptr<World> World::create(const std::vector<int>& pids, int own_rank,
                                     const PartOfJob& part) {
  const auto size = static_cast<int>(pids.size());
  auto segment = Segment::create(ControlPage::bytes(size));
  auto* page = new (segment->data()) ControlPage();
  page->size = size;
  new (&page->channel()) Channel(size);
  for (int rank = 0; rank < size; ++rank) {
    (new (&page->rank(rank)) RankState())->pid = pids[rank];
    page->channel().slot(rank).world_rank = rank;
    new (&page->ring(rank)) FlightRing();
  }
  return std::shared_ptr<World>(new World(own_rank, size, std::move(segment), part));
}

std::shared_ptr<World> World::open(int rank, int size, const SharedRange& page,
                                   const PartOfJob& part) {
  return std::shared_ptr<World>(new World(rank, size, Segment::open(page), part));
}

World::World(int rank, int size, std::shared_ptr<Segment> segment, const PartOfJob& part)
    : rank_(rank),
      size_(size),
      part_(part),
      segment_(std::move(segment)),
      page_(reinterpret_cast<ControlPage*>(segment_->data())) {
  check_access();
  for (const int pid : pids()) {
    pidfds_.push_back(pid == ::getpid() ? FileDescriptor() : open_pidfd(pid));
  }
}

/// Throws c10::Error if this rank has no access to the memory of a peer's process.
void World::check_access() const {
  for (int peer = 0; peer < size_; ++peer) {
    if (pid_of(peer) == ::getpid()) continue;
    const std::string problem = access_problem(pid_of(peer));
    TORCH_CHECK(problem.empty(), "[comm] shared memory: got no access to the memory of rank ",
                number_of(peer), place_of(peer), ": ", problem);
  }
}

World::~World() { page_->rank(rank_).left.store(1, std::memory_order_release); }

std::vector<int> World::pids() const {
  std::vector<int> pids;
  for (int rank = 0; rank < size_; ++rank) pids.push_back(pid_of(rank));
  return pids;
}

int World::cores() const { return available_cores(pids()); }

void World::await_end_of(int pid) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (pid_of(rank) != pid || !pidfds_[rank].is_open()) continue;
    pollfd handle{pidfds_[rank].get(), POLLIN, 0};
    ::poll(&handle, 1, static_cast<int>(kEnding.count()));
    return;
  }
}

std::string World::place_of(int rank) const {
  return absl::StrCat(" (pid ", pid_of(rank), part_.host.empty() ? "" : " on ", part_.host, ")");
}

std::string World::activity_of(int rank) const {
  const int pid = pid_of(rank);
  if (pid == ::getpid()) return "";
  const std::optional<ProcessStatus> status = process_status(pid);
  return status.has_value() ? status->describe() : "";
}

std::string World::failure() {
  const std::string lost = lost_rank();
  return lost.empty() && poison().is_set() ? poison().cause() : lost;
}

std::string World::lost_rank() { return check_peers() ? poison().cause() : ""; }

void World::fail(std::string_view cause, bool is_author) noexcept {
  fail_by(is_author ? rank_ : Poison::kNobody, cause);
}

bool World::fail_by(int64_t author, std::string_view cause) noexcept {
  // Tell the launcher the cause before the poison makes peers fail.
  if (!poison().is_set()) report_failure(-1, cause);
  const bool is_first = poison().set(cause, author);
  ring_bells(channel());
  dump_flights(cause);
  return is_first;
}

bool World::check_peers(const std::function<std::string(const std::string&)>& describe) {
  const int own_pid = ::getpid();
  for (int rank = 0; rank < size_; ++rank) {
    RankState& state = page_->rank(rank);
    if (state.pid == own_pid || state.left.load(std::memory_order_acquire) != 0) continue;
    bool ended;
    if (pidfds_[rank].is_open()) {
      pollfd handle{pidfds_[rank].get(), POLLIN, 0};
      ended = ::poll(&handle, 1, 0) > 0;
    } else {  // no pidfd: the process had ended, or pidfd_open is refused
      ended = ::kill(state.pid, 0) != 0 && errno == ESRCH;
    }
    // Check again, because the rank may have left in an orderly way just before its process ended.
    if (ended && state.left.load(std::memory_order_acquire) == 0) {
      const std::string cause = absl::StrCat("rank ", number_of(rank), place_of(rank), " died");
      if (!poison().is_set()) report_failure(number_of(rank), describe(cause));
      poison().set(cause, Poison::kNobody);
      dump_flights(cause);
      return true;
    }
  }
  return false;
}

RankFlight World::flight_of(int rank) const {
  const FlightRing& ring = page_->ring(rank);
  return {.rank = number_of(rank),
          .pid = pid_of(rank),
          .host = part_.host,
          .state = process_state(pid_of(rank)),
          .begun = ring.begun(),
          .records = ring.last()};
}

void World::dump_flights(std::string_view cause) noexcept {
  try {
    const std::string directory = flight_dump_directory();
    if (directory.empty()) return;
    if (page_->dump_claimed.exchange(1, std::memory_order_relaxed) != 0) return;
    std::vector<RankFlight> ranks;
    for (int rank = 0; rank < size_; ++rank) ranks.push_back(flight_of(rank));
    write_flight_dump(directory, number_of(rank_), ranks, cause);
  } catch (const std::exception&) {  // no memory for a dump
  }
}

}  // namespace tessera::internal::shm

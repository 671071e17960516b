#include "tessera/core/comm/nccl/world.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include <c10/core/DeviceGuard.h>

#include "tessera/core/comm/flight_recorder/flight_recorder.h"
#include "tessera/core/comm/nccl/pending.h"
#include "tessera/core/process/ending_thread.h"

namespace tessera::internal::nccl {
namespace {

// How long the first call that fails waits until its cause is published and the communicators are
// down; an abort that hangs must not hang it.
constexpr auto kTimeToSettle = std::chrono::seconds(5);

}  // namespace

/// Communicators of a group that is gone.
struct World::Leaving {
  std::string group;
  std::vector<std::shared_ptr<Communicator>> communicators;
  std::vector<std::shared_ptr<Stream>> streams;
  Clock::time_point deadline;
  std::string report;  // "" once it is in the table
};

std::shared_ptr<World> World::start(WorldOptions options, std::shared_ptr<Progress> all) {
  const std::shared_ptr<World> world(new World(std::move(options), std::move(all)));
  world->enter(world->all_);
  EndingThread(
      "the progress of NCCL", [world] { world->run(); },
      [world] {
        world->end();
        return true;
      })
      .detach();
  return world;
}

World::World(WorldOptions options, std::shared_ptr<Progress> all)
    : options_(std::move(options)), all_(std::move(all)), next_look_(Clock::now()) {}

World::~World() = default;

void World::propose(std::string_view cause) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (proposal_.empty()) proposal_ = cause.empty() ? "aborted" : std::string(cause);
    changed_.notify_all();
  } catch (...) {  // no memory for the text: the others see a time-out
  }
}

std::optional<std::string> World::failure() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (proposal_.empty() && !failed_) return std::nullopt;
  // Only then does nothing on the device touch the memory that an unwinding caller frees.
  if (!gave_up_) gave_up_ = !settled_.wait_for(lock, kTimeToSettle, [this] { return is_down_; });
  return failed_ ? cause_ : proposal_;
}

void World::watch(std::shared_ptr<Pending> pending) {
  const NumberedCall& call = pending->call();
  pending->record({flights_, call.signature, call.sequence, call.tag, pending->group()});
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pending_.empty()) changed_.notify_all();
  pending_.push_back(std::move(pending));
}

void World::enter(std::shared_ptr<Progress> progress) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++groups_;
  progress_[progress->group()] = std::move(progress);
}

void World::adopt(std::shared_ptr<Communicator> communicator) {
  const std::lock_guard<std::mutex> lock(mutex_);
  communicators_.push_back(std::move(communicator));
}

void World::leave(const std::shared_ptr<Progress>& progress,
                  std::vector<std::shared_ptr<Communicator>> communicators,
                  std::vector<std::shared_ptr<Stream>> streams) noexcept {
  try {
    progress->leave();
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& gone : communicators) std::erase(communicators_, gone);
    leaving_.push_back({.group = progress->group(),
                        .communicators = std::move(communicators),
                        .streams = std::move(streams),
                        .deadline = Clock::now() + options_.timeout,
                        .report = progress->report()});
    --groups_;
    changed_.notify_all();
  } catch (...) {  // no memory: the communicators stay until the process ends
  }
}

void World::run() {
  // NCCL makes the device current where it needs it and then goes back; from none, that is GPU 0,
  // where it would make a context.
  c10::OptionalDeviceGuard here;
  if (options_.device != nullptr) here.reset_device(options_.device->torch_device());
  while (sleep()) {
    if (!is_failed()) {
      const Cause cause = look();
      if (!cause.text.empty()) settle(cause);
    }
    if (is_failed()) drop();
    take_down();
  }
  // At the end of the process: says at least who has left, and why.
  if (const std::string cause = proposal(); !cause.empty() && !is_failed()) publish({cause});
  take_down();
}

/// The process ends.
void World::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_ending_ = true;
  changed_.notify_all();
}

/// Until there may be something to do. False when there never will be.
bool World::sleep() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_ending_) return false;
  const bool is_busy = !pending_.empty() || !leaving_.empty();
  if (groups_ == 0 && !is_busy) return false;
  if (!proposal_.empty() && !failed_) return true;
  changed_.wait_for(lock, is_busy ? options_.local_poll : options_.table_poll);
  return true;
}

std::string World::proposal() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return proposal_;
}

/// Makes the first published cause this rank's, then aborts.
void World::settle(const Cause& cause) {
  std::string first = publish(cause);
  // This rank's own last calls: peers' are on other devices or hosts.
  const RankFlight own{.rank = options_.rank,
                       .pid = static_cast<int>(::getpid()),
                       .state = "failed",
                       .begun = flights_->begun(),
                       .records = flights_->last()};
  write_flight_dump(flight_dump_directory(), options_.rank, {own}, first);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    cause_ = std::move(first);
    failed_.store(true, std::memory_order_release);
  }
  drop();
  const std::lock_guard<std::mutex> lock(mutex_);
  is_down_ = true;
  settled_.notify_all();
}

/// Ends all that a failed world does, also what was begun while it failed.
void World::drop() {
  std::vector<std::shared_ptr<Communicator>> communicators;
  std::list<std::shared_ptr<Pending>> pending;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    communicators.swap(communicators_);
    pending.swap(pending_);
  }
  for (const auto& communicator : communicators) communicator->abort();
}

bool World::has_pending(const std::string& group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(pending_.begin(), pending_.end(), [&](const auto& pending) {
    return pending->is_on_device() && pending->group() == group;
  });
}

/// Brings the communicators of groups that are gone one step further.
void World::take_down() {
  std::list<Leaving> leaving;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    leaving.swap(leaving_);
  }
  for (auto next = leaving.begin(); next != leaving.end();) {
    const auto gone = next++;
    if (!gone->report.empty()) say_left(gone->group, std::exchange(gone->report, ""));
    const bool is_late = is_failed() || Clock::now() >= gone->deadline;
    if (!is_late && has_pending(gone->group)) continue;
    std::erase_if(gone->communicators, [&](const std::shared_ptr<Communicator>& communicator) {
      if (!is_late) return communicator->finish();
      communicator->abort();
      return true;
    });
    if (gone->communicators.empty()) leaving.erase(gone);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  leaving_.splice(leaving_.begin(), leaving);
}

}  // namespace tessera::internal::nccl

#include "tessera/core/comm/nccl/world.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/core/DeviceGuard.h>

#include "tessera/core/comm/flight_recorder/flight_dump.h"
#include "tessera/core/comm/nccl/pending.h"
#include "tessera/core/comm/nccl/world_cause.h"
#include "tessera/core/process/ending_thread.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/failure_report.h"

namespace tessera::internal::nccl {
namespace {

// How long the first call that fails waits until its cause is published and the communicators are
// down; an abort that hangs must not hang it.
constexpr auto kTimeToSettle = std::chrono::seconds(5);

}  // namespace

/// Communicators of a group that is gone.
struct World::Leaving {
  enum class Stage : uint8_t { kOpen, kFinalizing, kDown };

  std::string group;
  std::vector<std::shared_ptr<Communicator>> communicators;
  std::vector<Stage> stages;
  std::vector<std::shared_ptr<Stream>> streams;
  Clock::time_point deadline;
  std::string report;
  bool is_announced = false;
};

std::shared_ptr<World> World::start(WorldOptions options) {
  const std::shared_ptr<World> world(new World(std::move(options)));
  EndingThread(
      "the progress of NCCL", [world] { world->run(); },
      [world] {
        world->end();
        return true;
      })
      .detach();
  return world;
}

World::World(WorldOptions options)
    : options_(std::move(options)),
      agreement_(options_.table, options_.rank),
      next_look_(Clock::now()) {}

World::~World() = default;

void World::propose(std::string_view cause) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (proposal_.empty()) proposal_ = cause.empty() ? "aborted" : std::string(cause);
    changed_.notify_all();
  } catch (...) {  // no memory for the text: the others see a time-out
  }
}

void World::propose_left(std::string_view where, const std::exception_ptr& error) noexcept {
  try {
    std::string text = "an exception of unknown type";
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& known) {
      text = error_text(known);
    } catch (...) {
    }
    propose(absl::StrCat("rank ", options_.rank, " left ", std::string(where),
                         " by an exception: ", text));
  } catch (...) {  // no memory for the text
    propose("");
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
  pending->note_flight(flights_->begin(call.signature, call.sequence, call.tag, pending->group()));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pending_.empty()) changed_.notify_all();
  pending_.push_back(std::move(pending));
}

void World::enter(std::shared_ptr<Progress> progress) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++groups_;
  entered_ = true;
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
    Leaving leaving;
    leaving.group = progress->group();
    leaving.report = progress->report(-1);
    leaving.stages.resize(communicators.size(), Leaving::Stage::kOpen);
    leaving.communicators = std::move(communicators);
    leaving.streams = std::move(streams);
    leaving.deadline = Clock::now() + options_.timeout;
    leaving_.push_back(std::move(leaving));
    --groups_;
    changed_.notify_all();
  } catch (...) {  // no memory: the communicators stay until the process ends
  }
}

void World::run() {
  // NCCL makes the device current where it needs it and then goes back; from none, that is GPU 0,
  // where it would make a context.
  const c10::DeviceGuard here(options_.device->torch_device());
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
  if (entered_ && groups_ == 0 && !is_busy) return false;
  if (!proposal_.empty() && !failed_) return true;
  const auto longest = is_busy ? options_.local_poll : options_.table_poll;
  changed_.wait_for(lock, std::min(longest, options_.table_poll));
  return true;
}

std::string World::proposal() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return proposal_;
}

World::Cause World::look() {
  if (std::string proposed = proposal(); !proposed.empty()) {
    Result state = Result::kSuccess;
    find_failed(state);
    Cause cause{std::move(proposed)};
    return state == Result::kRemoteError ? name_lost(std::move(cause)) : cause;
  }
  Cause cause = look_at_pending();
  if (cause.text.empty()) cause = look_at_communicators();
  if (cause.text.empty() && Clock::now() >= next_look_) {
    next_look_ = Clock::now() + options_.table_poll;
    cause = look_at_table();
  }
  return cause;
}

/// A communicator that reports an error, and the error; null if none does.
/// Makes it the cause of all ranks unless they have one. Returns theirs. The launcher is told
/// before they are, and not of what another rank has found.
std::string World::publish(const Cause& cause) {
  bool is_first = !cause.is_published;
  try {
    is_first = is_first && !agreement_.failure();
  } catch (const std::exception&) {  // the table is gone
  }
  if (is_first) report_failure(cause.culprit, cause.text);
  try {
    return agreement_.publish(cause.text);
  } catch (const std::exception&) {  // then every rank has its own cause
    return cause.text;
  }
}

/// This rank's own last calls: peers' are on other devices or hosts.
void World::dump_flights(const std::string& cause) noexcept {
  try {
    const std::string directory = flight_dump_directory();
    if (directory.empty()) return;
    write_flight_dump(directory, options_.rank,
                      {{.rank = options_.rank,
                        .pid = static_cast<int>(::getpid()),
                        .state = "failed",
                        .begun = flights_->begun(),
                        .records = flights_->last()}},
                      cause);
  } catch (const std::exception&) {  // no memory; the error itself goes on
  }
}

/// Makes the first published cause this rank's, then aborts.
void World::settle(const Cause& cause) {
  std::string first = publish(cause);
  dump_flights(first);
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
  using Stage = Leaving::Stage;
  for (Leaving& gone : leaving) {
    if (std::exchange(gone.is_announced, true)) continue;
    try {
      agreement_.say_left(gone.group, gone.report);
    } catch (const std::exception&) {  // then it is one that does not answer
    }
  }
  for (auto next = leaving.begin(); next != leaving.end();) {
    const auto gone = next++;
    bool is_down = true;
    for (size_t i = 0; i < gone->communicators.size(); ++i) {
      Communicator& communicator = *gone->communicators[i];
      Stage& stage = gone->stages[i];
      if (stage == Stage::kDown) continue;
      if (is_failed() || Clock::now() >= gone->deadline) {
        communicator.abort();
        stage = Stage::kDown;
        continue;
      }
      if (stage == Stage::kOpen && !has_pending(gone->group)) {
        communicator.finalize();
        stage = Stage::kFinalizing;
      }
      if (stage == Stage::kFinalizing) {
        const Result state = communicator.poll().value_or(Result::kSuccess);
        if (state == Result::kSuccess) {
          communicator.destroy();
          stage = Stage::kDown;
        } else if (state != Result::kInProgress) {
          communicator.abort();
          stage = Stage::kDown;
        }
      }
      is_down = is_down && stage == Stage::kDown;
    }
    if (is_down) leaving.erase(gone);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  leaving_.splice(leaving_.begin(), leaving);
}

}  // namespace tessera::internal::nccl

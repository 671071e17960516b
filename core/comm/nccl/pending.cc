#include "tessera/core/comm/nccl/pending.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include <absl/strings/str_cat.h>

namespace tessera::internal::nccl {

Pending::Pending(std::shared_ptr<World> world, std::shared_ptr<Progress> progress, int rank,
                 NumberedCall call, std::shared_ptr<Event> end, std::vector<at::Tensor> tensors)
    : world_(std::move(world)),
      progress_(std::move(progress)),
      rank_(rank),
      call_(std::move(call)),
      end_(std::move(end)),
      tensors_(std::move(tensors)) {}

bool Pending::look() {
  if (finished_.load(std::memory_order_acquire)) return true;
  if (end_ == nullptr || !launched_.load(std::memory_order_acquire) || !end_->is_done()) {
    return false;
  }
  // If an abort has ended the work on the device, that looks like success. But a failure is noted
  // before the abort, so it is seen here.
  if (world_->is_failed()) return false;
  mark_finished();
  return true;
}

bool Pending::is_completed() { return look() || world_->is_failed(); }

void Pending::wait() {
  if (!look()) {
    throw_if_failed();
    world_->options().device->current_stream()->wait(*end_);
    // If the stream is a CPU's, the line above has blocked until the collective ended, perhaps
    // because it was aborted. Then there is no result.
    throw_if_failed();
  }
  // The tensors can be let go now, because whatever reuses their memory comes later on the current
  // stream.
  release();
}

void Pending::wait_on_host() {
  if (!look()) {
    throw_if_failed();
    await([this] { return look(); });
  }
  release();
}

void Pending::release() {
  if (!released_.exchange(true)) tensors_.clear();
}

bool Pending::is_late(std::chrono::steady_clock::time_point now) const {
  const auto begin = begin_.load(std::memory_order_relaxed);
  return begin <= now && now - begin >= world_->options().timeout;
}

void Pending::throw_if_failed() {
  if (const auto cause = world_->failure()) throw_error(*cause);
}

void Pending::fail(const std::string& cause) {
  world_->propose(cause);
  throw_if_failed();
  throw_error(cause);
}

void Pending::give_up(const std::string& problem) {
  if (finished_.load(std::memory_order_acquire)) return;
  world_->propose(absl::StrCat("rank ", world_->options().rank, " left ", call_.text(),
                               " on group '", group(), "' by an exception: ", problem));
}

void Pending::throw_error(const std::string& cause) const {
  throw CommError({to_string(call_.signature.op), group(), call_.sequence, rank_, call_.tag},
                  cause);
}

/// Notes in `wait` that this rank waits in this call. Names no ranks, because NCCL does not say for
/// which ranks it waits.
void Pending::note_wait(WaitReport& wait) const noexcept try {
  const std::string number = call_.sequence < 0 ? "" : absl::StrCat(" #", call_.sequence);
  wait.note(absl::StrCat(call_.text(), number, " on group '", group(), "'"), group(),
            call_.sequence, {});
} catch (const std::exception&) {  // no memory: the wait is not noted
}

void Pending::pause(int64_t looks) {
  constexpr int64_t kYields = 200;
  constexpr int64_t kMaxMicroseconds = 1000;
  if (looks < kYields) {
    ::sched_yield();
    return;
  }
  std::this_thread::sleep_for(
      std::chrono::microseconds(std::min(looks - kYields + 20, kMaxMicroseconds)));
}

}  // namespace tessera::internal::nccl

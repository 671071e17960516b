#include "tessera/core/process/rank_progress.h"

#include <time.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace tessera::internal {
namespace {

/// A reader that collides with a writer retries at most this often, because a rank that misbehaves
/// may write for ever.
constexpr int kLooks = 20;
constexpr double kSecond_ns = 1e9;

int64_t clock_ns(clockid_t clock) noexcept {
  timespec now{};
  ::clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

/// Copies text and fills the rest with zeros.
template <size_t size>
void put(std::array<char, size>& place, std::string_view text) {
  place.fill('\0');
  text.copy(place.data(), size);
}

/// Returns the text up to the first zero, with '?' for control and non-ASCII characters.
template <size_t size>
std::string shown(const std::array<char, size>& place) {
  std::string text(place.data(), ::strnlen(place.data(), size));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c >= 127; }, '?');
  return text;
}

}  // namespace

int64_t monotonic_ns() { return clock_ns(CLOCK_MONOTONIC); }

int64_t coarse_monotonic_ns() noexcept { return clock_ns(CLOCK_MONOTONIC_COARSE); }

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kStep:
      return "step";
    case Phase::kSaving:
      return "saving";
    case Phase::kOther:
      break;
  }
  return "";
}

void RankProgress::begin() noexcept {
  note_rest();
  note_phase(Phase::kOther);
  note_step(0);
  step_ends_.store(0, std::memory_order_release);
  note_wait_end();
}

void RankProgress::note_life() noexcept {
  life_ns_.store(coarse_monotonic_ns(), std::memory_order_relaxed);
}

void RankProgress::note_step_end(int64_t waited_ns) noexcept {
  const uint64_t number = step_ends_.load(std::memory_order_relaxed);
  StepEnd& end = ends_[number % kSteps];
  // Release order: a reader that has read one of these values, and then reads the number of ends,
  // notices that this entry was overwritten.
  end.when_ns.store(monotonic_ns(), std::memory_order_release);
  end.waited_ns.store(waited_ns, std::memory_order_release);
  step_ends_.store(number + 1, std::memory_order_release);
}

void RankProgress::note_wait(int64_t since_ns, std::string_view call, std::string_view group,
                             int64_t number, const std::vector<int>& ranks) noexcept {
  WaitBytes bytes{};
  bytes.since_ns = since_ns;
  bytes.number = number;
  bytes.awaited = static_cast<int64_t>(ranks.size());
  std::copy_n(ranks.begin(), std::min(ranks.size(), LongWait::kRanks), bytes.ranks.begin());
  put(bytes.group, group);
  put(bytes.call, call);
  write_wait(std::bit_cast<std::array<uint64_t, kWords>>(bytes));
}

void RankProgress::note_wait_end() noexcept { write_wait({}); }

void RankProgress::write_wait(const std::array<uint64_t, kWords>& words) noexcept {
  // Makes the version odd. It is odd already if a thread was killed in this function.
  const uint64_t version = wait_version_.load(std::memory_order_relaxed) | 1;
  wait_version_.store(version, std::memory_order_relaxed);
  for (size_t i = 0; i < kWords; ++i) wait_[i].store(words[i], std::memory_order_release);
  wait_version_.store(version + 1, std::memory_order_release);
}

Phase RankProgress::phase() const {
  const auto phase = static_cast<Phase>(phase_.load(std::memory_order_relaxed));
  return phase_name(phase)[0] == '\0' ? Phase::kOther : phase;
}

Pace RankProgress::pace() const {
  for (int look = 0; look < kLooks; ++look) {
    const uint64_t count = step_ends_.load(std::memory_order_acquire);
    if (count == 0) return {};
    // Leaves out the oldest entry, which is overwritten when the next step ends.
    const uint64_t intervals = std::min(count, kSteps - 1) - 1;
    const StepEnd& last = ends_[(count - 1) % kSteps];
    const StepEnd& first = ends_[(count - 1 - intervals) % kSteps];
    Pace pace;
    pace.last_step_ns = last.when_ns.load(std::memory_order_acquire);
    const int64_t begin_ns = first.when_ns.load(std::memory_order_acquire);
    const int64_t waited_before_ns = first.waited_ns.load(std::memory_order_acquire);
    const int64_t waited_ns = last.waited_ns.load(std::memory_order_acquire);
    if (step_ends_.load(std::memory_order_relaxed) != count) continue;
    const double steps = static_cast<double>(intervals) * kSecond_ns;
    const double all_ns = static_cast<double>(pace.last_step_ns) - static_cast<double>(begin_ns);
    if (intervals == 0 || !(all_ns > 0)) return pace;
    pace.seconds_per_step = all_ns / steps;
    const double own_ns =
        all_ns - (static_cast<double>(waited_ns) - static_cast<double>(waited_before_ns));
    if (waited_before_ns >= 0 && waited_ns >= waited_before_ns && own_ns >= 0) {
      pace.own_seconds_per_step = own_ns / steps;
    }
    return pace;
  }
  return {};
}

std::optional<LongWait> RankProgress::wait() const {
  static_assert(std::is_trivially_copyable_v<WaitBytes>);
  for (int look = 0; look < kLooks; ++look) {
    const uint64_t version = wait_version_.load(std::memory_order_acquire);
    if (version % 2 != 0) continue;
    std::array<uint64_t, kWords> words;
    for (size_t i = 0; i < kWords; ++i) words[i] = wait_[i].load(std::memory_order_acquire);
    if (wait_version_.load(std::memory_order_relaxed) != version) continue;
    const auto bytes = std::bit_cast<WaitBytes>(words);
    if (bytes.since_ns <= 0) return std::nullopt;
    LongWait wait{.since_ns = bytes.since_ns,
                  .call = shown(bytes.call),
                  .group = shown(bytes.group),
                  .number = bytes.number,
                  .ranks = {},
                  .awaited = std::max<int64_t>(bytes.awaited, 0)};
    const int64_t there = std::min<int64_t>(wait.awaited, LongWait::kRanks);
    wait.ranks.assign(bytes.ranks.begin(), bytes.ranks.begin() + there);
    return wait;
  }
  return std::nullopt;
}

}  // namespace tessera::internal

#include "tessera/core/process/progress_report.h"

#include <atomic>

#include "tessera/core/process/launched_rank.h"

namespace tessera::internal {
namespace {

// A thread is identified by the address of its waited_ns, because that costs only a load.
thread_local int64_t waited_ns = 0;  // time for which this thread has waited for other ranks
std::atomic<const int64_t*> trainer{nullptr};  // waited_ns of the thread that last ended a step
std::atomic<const int64_t*> waiter{nullptr};   // waited_ns of the thread whose wait is noted
std::atomic<int> presences{0};

JobPage* own_page() noexcept {
  const LaunchedRank* const own = LaunchedRank::own();
  return own == nullptr ? nullptr : own->page.get();
}

bool may_be_trainer() noexcept {
  const int64_t* const known = trainer.load(std::memory_order_relaxed);
  return known == nullptr || known == &waited_ns;
}

}  // namespace

void report_life() noexcept {
  if (JobPage* const page = own_page(); page != nullptr) page->own_progress().note_life();
}

void report_step(int64_t step) noexcept {
  if (JobPage* const page = own_page(); page != nullptr) page->own_progress().note_step(step);
}

void report_saved_step(int64_t step) noexcept {
  if (JobPage* const page = own_page(); page != nullptr) page->note_saved_step(step);
}

void report_step_end(bool sees_waits) noexcept {
  JobPage* const page = own_page();
  if (page == nullptr) return;
  trainer.store(&waited_ns, std::memory_order_relaxed);
  page->own_progress().note_step_end(sees_waits ? waited_ns : -1);
  page->own_progress().note_life();
}

void report_phase(Phase phase) noexcept {
  JobPage* const page = own_page();
  if (page == nullptr) return;
  page->own_progress().note_phase(phase);
  page->own_progress().note_life();
}

PhaseReport::PhaseReport(Phase phase) noexcept : page_(may_be_trainer() ? own_page() : nullptr) {
  if (page_ == nullptr) return;
  before_ = page_->own_progress().phase();
  report_phase(phase);
}

PhaseReport::~PhaseReport() {
  if (page_ != nullptr) report_phase(before_);
}

GroupPresence::GroupPresence() noexcept {
  presences.fetch_add(1);
  report_life();
}

GroupPresence::~GroupPresence() {
  if (presences.fetch_sub(1) != 1) return;
  if (JobPage* const page = own_page(); page != nullptr) page->own_progress().note_rest();
}

WaitReport::WaitReport() noexcept : page_(own_page()) {}

WaitReport::~WaitReport() {
  if (begin_ == Clock::time_point()) return;
  waited_ns += std::chrono::nanoseconds(Clock::now() - begin_).count();
  page_->own_progress().note_life();
  if (!is_noted_) return;
  page_->own_progress().note_wait_end();
  waiter.store(nullptr, std::memory_order_release);
}

bool WaitReport::is_due(Clock::time_point now) noexcept {
  if (page_ == nullptr) return false;
  begin();
  page_->own_progress().note_life();
  if (next_note_ == Clock::time_point()) next_note_ = begin_ + kLong;
  if (now < next_note_ || !may_be_trainer()) return false;
  next_note_ = now + kLong;
  return true;
}

void WaitReport::note(std::string_view call, std::string_view group, int64_t number,
                      const std::vector<int>& ranks) noexcept {
  const LaunchedRank* const own = LaunchedRank::own();
  if (own == nullptr || page_ == nullptr) return;
  const int64_t* nobody = nullptr;
  is_noted_ =
      is_noted_ || waiter.compare_exchange_strong(nobody, &waited_ns, std::memory_order_acquire);
  if (!is_noted_) return;
  const bool has_numbers = own->is_numbered_alike.load(std::memory_order_relaxed);
  page_->own_progress().note_wait(std::chrono::nanoseconds(begin_.time_since_epoch()).count(), call,
                                  group, number, has_numbers ? ranks : std::vector<int>());
}

}  // namespace tessera::internal

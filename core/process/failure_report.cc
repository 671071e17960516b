#include "tessera/core/process/failure_report.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <absl/strings/numbers.h>

#include "tessera/core/process/error_text.h"
#include "tessera/core/process/fork.h"
#include "tessera/core/process/job_page.h"
#include "tessera/environment.h"

namespace tessera::internal {
namespace {

/// This process and its launcher; never destroyed: a process may fail at its very end.
struct Reporter {
  Origin origin;
  int rank;  // the launcher's number, as culprits are
  int world_size;
  std::unique_ptr<JobPage> page;
  std::atomic<bool> is_numbered_alike{true};  // in the world that was made last
};

// As much as a note holds. Memory may be what a rank has run out of, so none is allocated.
constexpr size_t kNoteBytes = 2000;
constexpr size_t kPlaceBytes = 400;

/// The collective that this process began last.
class LastCollective {
 public:
  void set(std::string_view op, std::string_view tag, int64_t sequence, std::string_view group) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++begun_;
    sequence_ = sequence;
    op_.set(op);
    tag_.set(tag);
    group_.set(group);
  }

  /// " (after 12 collectives, the last: all_reduce 'bucket 3' #9 on group 'world')", or "".
  void describe(std::array<char, kPlaceBytes>& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    text[0] = '\0';
    if (begun_ == 0) return;
    const char* const quote = tag_.length > 0 ? "'" : "";
    std::snprintf(text.data(), text.size(),
                  " (after %lld collective%s, the last: %.*s %s%.*s%s%s#%lld on group '%.*s')",
                  static_cast<long long>(begun_), begun_ == 1 ? "" : "s", op_.length, op_.text,
                  quote, tag_.length, tag_.text, quote, tag_.length > 0 ? " " : "",
                  static_cast<long long>(sequence_), group_.length, group_.text);
  }

 private:
  struct Text {
    char text[100];
    int length = 0;
    void set(std::string_view whole) { length = static_cast<int>(whole.copy(text, sizeof(text))); }
  };

  std::mutex mutex_;
  int64_t begun_ = 0;
  int64_t sequence_ = 0;
  Text op_, tag_, group_;
};

std::atomic<Reporter*> reporter{nullptr};
LastCollective last_collective;
std::terminate_handler next_handler = nullptr;

bool is_number(const char* name, int number) {
  int value = 0;
  return absl::SimpleAtoi(process_environment(name).value_or(""), &value) && value == number;
}

/// An uncaught exception need not unwind the stack, so no group knows of it yet.
[[noreturn]] void report_and_terminate() {
  if (std::current_exception() != nullptr) report_failure(-1, present_error_text());
  if (next_handler != nullptr) next_handler();
  std::abort();
}

}  // namespace

void report_failures(int rank, int world_size) {
  Reporter* known = reporter.load(std::memory_order_acquire);
  if (known != nullptr) {
    if (!known->origin.is_here()) return;
    known->page->forget_failure();
    known->is_numbered_alike.store(known->rank == rank && known->world_size == world_size);
    return;
  }
  const std::string address = process_environment("TESSERA_JOB_PAGE").value_or("");
  if (address.empty() || !is_number("RANK", rank) || !is_number("WORLD_SIZE", world_size)) return;
  auto page = JobPage::open(address, rank);
  if (page == nullptr) return;
  std::unique_ptr<Reporter> made(
      new Reporter{.origin = {}, .rank = rank, .world_size = world_size, .page = std::move(page)});
  if (!reporter.compare_exchange_strong(known, made.get())) return;
  (void)made.release();  // never destroyed
  next_handler = std::set_terminate(report_and_terminate);
}

void note_collective(std::string_view op, std::string_view tag, int64_t sequence,
                     std::string_view group) noexcept {
  const Reporter* const own = reporter.load(std::memory_order_acquire);
  if (own == nullptr || !own->origin.is_here()) return;
  last_collective.set(op, tag, sequence, group);
}

void report_failure(int culprit, std::string_view text, int pid) noexcept {
  const Reporter* const own = reporter.load(std::memory_order_acquire);
  if (own == nullptr || !own->origin.is_here()) return;
  if (culprit >= 0) {
    const int by_pid = pid > 0 ? own->page->rank_of(pid) : -1;
    if (by_pid >= 0) return own->page->note_failure(by_pid, text);
    // If the world numbers its ranks differently, the launcher cannot know the culprit.
    return own->page->note_failure(own->is_numbered_alike.load() ? culprit : own->rank, text);
  }
  std::array<char, kPlaceBytes> place;
  last_collective.describe(place);
  const std::string_view after(place.data());
  std::array<char, kNoteBytes> note;
  size_t length = text.substr(0, note.size() - after.size()).copy(note.data(), note.size());
  length += after.copy(note.data() + length, note.size() - length);
  own->page->note_failure(own->rank, {note.data(), length});
}

}  // namespace tessera::internal

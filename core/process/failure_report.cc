#include "tessera/core/process/failure_report.h"

#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <absl/strings/numbers.h>

#include "tessera/core/process/error_text.h"
#include "tessera/core/process/fork.h"
#include "tessera/core/process/job_page.h"
#include "tessera/core/process/launchers.h"
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

std::atomic<Reporter*> reporter{nullptr};
std::terminate_handler next_handler = nullptr;

std::optional<int> number_in(const char* name) {
  int value = 0;
  const std::string text = process_environment(name).value_or("");
  return absl::SimpleAtoi(text, &value) ? std::optional(value) : std::nullopt;
}

/// Whether the variable is the number, or not set: as in a rank of the mpirun that tessera-run
/// --supervise has started, whose page has room for rank 0 alone.
bool may_be(const char* name, int number) {
  return !process_environment(name).has_value() || number_in(name) == number;
}

/// That of this process; null before there is one, and in a child of fork().
Reporter* own_reporter() noexcept {
  Reporter* const own = reporter.load(std::memory_order_acquire);
  return own != nullptr && own->origin.is_here() ? own : nullptr;
}

/// An uncaught exception need not unwind the stack, so no group knows of it yet.
[[noreturn]] void report_and_terminate() {
  if (std::current_exception() != nullptr) report_failure(-1, present_error_text());
  if (next_handler != nullptr) next_handler();
  std::abort();
}

/// Finds the launcher, if there is one that may know this process by that rank.
void find_page(int rank, int world_size) {
  const std::string address = process_environment("TESSERA_JOB_PAGE").value_or("");
  if (address.empty() || !may_be("RANK", rank) || !may_be("WORLD_SIZE", world_size)) return;
  auto page = JobPage::open(address, rank);
  if (page == nullptr) return;
  std::unique_ptr<Reporter> made(
      new Reporter{.origin = {}, .rank = rank, .world_size = world_size, .page = std::move(page)});
  Reporter* none = nullptr;
  if (!reporter.compare_exchange_strong(none, made.get())) return;
  (void)made.release();  // never destroyed
  next_handler = std::set_terminate(report_and_terminate);
}

/// The same before there is a world. RANK and WORLD_SIZE count, whatever else the variables say:
/// that may be the error. Without them the process is a rank of the command that is supervised.
void find_page() {
  const auto rank = number_in("RANK");
  const auto world_size = number_in("WORLD_SIZE");
  if (rank && world_size) return find_page(*rank, *world_size);
  if (const auto own = read_own_rank(); own.ok()) find_page(own->rank, own->world_size);
}

}  // namespace

void report_failures(int rank, int world_size) {
  Reporter* const known = reporter.load(std::memory_order_acquire);
  if (known == nullptr) return find_page(rank, world_size);
  if (!known->origin.is_here()) return;
  known->page->forget_failure();
  known->is_numbered_alike.store(known->rank == rank && known->world_size == world_size);
}

void report_failure(int culprit, std::string_view text) noexcept {
  const Reporter* const own = own_reporter();
  if (own == nullptr) return;
  if (culprit >= 0 && !own->is_numbered_alike.load()) return;  // the launcher knows it by no number
  own->page->note_failure(culprit >= 0 ? culprit : own->rank, text);
}

void report_step(int64_t step) noexcept {
  if (const Reporter* const own = own_reporter(); own != nullptr) own->page->note_step(step);
}

void report_saved_step(int64_t step) noexcept {
  if (const Reporter* const own = own_reporter(); own != nullptr) own->page->note_saved_step(step);
}

void report_last_error(std::string_view text) {
  if (reporter.load(std::memory_order_acquire) == nullptr) find_page();
  if (const Reporter* const own = own_reporter(); own != nullptr) own->page->explain_failure(text);
}

}  // namespace tessera::internal

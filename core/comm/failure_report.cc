#include "tessera/core/comm/failure_report.h"

#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <absl/strings/numbers.h>

#include "tessera/core/comm/environment.h"
#include "tessera/core/comm/job_page.h"
#include "tessera/core/error_text.h"
#include "tessera/core/fork.h"

namespace tessera {
namespace {

/// This process and its launcher; never destroyed: a process may fail at its very end.
struct Reporter {
  Origin origin;
  int rank;
  std::unique_ptr<JobPage> page;
};

std::atomic<Reporter*> reporter{nullptr};
std::terminate_handler next_handler = nullptr;

bool is_number(const char* name, int number) {
  int value = 0;
  return absl::SimpleAtoi(process_environment(name).value_or(""), &value) && value == number;
}

/// An exception that nobody catches need not unwind the stack, so no group knows of it yet.
[[noreturn]] void report_and_terminate() {
  if (std::current_exception() != nullptr) report_failure(-1, present_error_text());
  if (next_handler != nullptr) next_handler();
  std::abort();
}

}  // namespace

void report_failures(int rank, int world_size) {
  Reporter* known = reporter.load(std::memory_order_acquire);
  if (known != nullptr) {
    if (known->origin.is_here() && known->rank == rank) known->page->forget_failure();
    return;
  }
  const std::string address = process_environment("TESSERA_JOB_PAGE").value_or("");
  if (address.empty() || !is_number("RANK", rank) || !is_number("WORLD_SIZE", world_size)) return;
  auto page = JobPage::open(address, rank);
  if (page == nullptr) return;
  auto made = std::make_unique<Reporter>(Reporter{Origin(), rank, std::move(page)});
  if (!reporter.compare_exchange_strong(known, made.get())) return;
  (void)made.release();  // never destroyed
  next_handler = std::set_terminate(report_and_terminate);
}

void report_failure(int culprit, std::string_view text) noexcept {
  const Reporter* const own = reporter.load(std::memory_order_acquire);
  if (own == nullptr || !own->origin.is_here()) return;
  own->page->note_failure(culprit < 0 ? own->rank : culprit, text);
}

}  // namespace tessera

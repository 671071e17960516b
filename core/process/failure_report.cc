#include "tessera/core/process/failure_report.h"

#include <cstdlib>
#include <exception>

#include "tessera/core/process/error_text.h"
#include "tessera/core/process/launched_rank.h"

namespace tessera::internal {
namespace {

std::terminate_handler next_handler = nullptr;

/// The terminate handler. Reports the exception, because an uncaught exception need not unwind the
/// stack, and then no group has reported it.
[[noreturn]] void report_and_terminate() {
  if (std::current_exception() != nullptr) report_failure(-1, present_error_text());
  if (next_handler != nullptr) next_handler();
  std::abort();
}

}  // namespace

void report_failures(int rank, int world_size) {
  if (!LaunchedRank::is_known()) {
    if (LaunchedRank::find(rank, world_size)) {
      next_handler = std::set_terminate(report_and_terminate);
    }
    return;
  }
  LaunchedRank* const own = LaunchedRank::own();
  if (own == nullptr) return;
  own->page->forget_failure();
  // No signs of life are expected until the ranks have met again.
  own->page->own_progress().note_rest();
  own->is_numbered_alike.store(own->rank == rank && own->world_size == world_size);
}

void report_failure(int culprit, std::string_view text) noexcept {
  const LaunchedRank* const own = LaunchedRank::own();
  if (own == nullptr) return;
  // If the ranks of this world have other numbers than in the launcher, the launcher would take the
  // culprit's number for another rank's, so note nothing.
  if (culprit >= 0 && !own->is_numbered_alike.load()) return;
  own->page->note_failure(culprit >= 0 ? culprit : own->rank, text);
}

void report_last_error(std::string_view text) {
  if (!LaunchedRank::is_known() && LaunchedRank::find()) {
    next_handler = std::set_terminate(report_and_terminate);
  }
  if (const LaunchedRank* const own = LaunchedRank::own(); own != nullptr) {
    own->page->explain_failure(text);
  }
}

}  // namespace tessera::internal

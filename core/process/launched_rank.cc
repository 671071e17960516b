#include "tessera/core/process/launched_rank.h"

#include <optional>
#include <string>
#include <utility>

#include <absl/strings/numbers.h>

#include "tessera/core/process/launchers.h"
#include "tessera/environment.h"

namespace tessera::internal {
namespace {

std::optional<int> number_in(const char* name) {
  int value = 0;
  const std::string text = process_environment(name).value_or("");
  return absl::SimpleAtoi(text, &value) ? std::optional(value) : std::nullopt;
}

/// Returns true if the variable equals `number` or is not set. It is not set in ranks of an mpirun
/// that tessera-run --supervise has started; the page of that tessera-run has room for rank 0 only.
bool may_be(const char* name, int number) {
  return !process_environment(name).has_value() || number_in(name) == number;
}

}  // namespace

bool LaunchedRank::find(int rank, int world_size) {
  const std::string address = process_environment("TESSERA_JOB_PAGE").value_or("");
  if (address.empty() || !may_be("RANK", rank) || !may_be("WORLD_SIZE", world_size)) return false;
  auto page = JobPage::open(address, rank);
  if (page == nullptr) return false;
  std::unique_ptr<LaunchedRank> made(new LaunchedRank{
      .origin = {}, .rank = rank, .world_size = world_size, .page = std::move(page)});
  LaunchedRank* none = nullptr;
  if (!own_.compare_exchange_strong(none, made.get())) return false;
  (void)made.release();  // never destroyed
  return true;
}

/// If RANK and WORLD_SIZE are set, uses them and ignores other variables, because the error to
/// report may be that other variables contradict these two. Otherwise the process is a rank of the
/// command that tessera-run --supervise has started.
bool LaunchedRank::find() {
  const auto rank = number_in("RANK");
  const auto world_size = number_in("WORLD_SIZE");
  if (rank && world_size) return find(*rank, *world_size);
  const auto own = read_own_rank();
  return own.ok() && find(own->rank, own->world_size);
}

void LaunchedRank::note_arrival() {
  const std::string address = process_environment("TESSERA_JOB_PAGE").value_or("");
  if (const auto rank = number_in("RANK")) JobPage::note_arrival(address, *rank);
}

}  // namespace tessera::internal

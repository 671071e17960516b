#include "tessera/zero/engine/micro_batches.h"

#include <bit>

#include <ATen/Parallel.h>
#include <absl/strings/str_cat.h>

namespace tessera::internal {

MicroBatches::MicroBatches(Reproducible reproducible, int rank, int size, int64_t& count)
    : is_any_size_(reproducible == Reproducible::kAnyWorldSize),
      rank_(rank),
      size_(size),
      threads_(at::get_num_threads()),
      other_threads_(threads_),
      count_(count) {}

void MicroBatches::begin() {
  if (const int threads = at::get_num_threads(); threads != threads_) other_threads_ = threads;
}

bool MicroBatches::is_sum_complete(int64_t backwards) const {
  return !is_any_size_ || std::has_single_bit(static_cast<uint64_t>(backwards));
}

std::string MicroBatches::problem(int64_t backwards) const {
  if (!is_any_size_) return "";
  if (backwards > 0 && !is_sum_complete(backwards)) {
    return absl::StrCat("got ", backwards,
                        " backwards since the last step, expected a power of two under "
                        "Options::reproducible; make more of them, or zero_grad()");
  }
  if (other_threads_ != threads_) {
    return absl::StrCat("got ", other_threads_, " intra-op threads in a backward, expected the ",
                        threads_,
                        " of parallelize under Options::reproducible; set that number again "
                        "(torch::set_num_threads), and zero_grad()");
  }
  return "";
}

}  // namespace tessera::internal

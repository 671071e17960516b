#include "tessera/core/step/ballot.h"

#include <algorithm>

namespace tessera {

Ballot::Ballot(ProcessGroup& group, int64_t words)
    : group_(group),
      size_(group.size()),
      words_(words),
      input_(group.allocate(words, at::kLong)),
      output_(group.allocate(size_ * words, at::kLong)),
      mine_(input_.mutable_data_ptr<int64_t>()),
      all_(output_.const_data_ptr<int64_t>()) {
  std::fill_n(mine_, words, int64_t{0});
}

void Ballot::exchange(std::string_view tag) { group_.all_gather(output_, input_, tag)->wait(); }

}  // namespace tessera

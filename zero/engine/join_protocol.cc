#include "tessera/zero/engine/join_protocol.h"

#include <algorithm>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"

namespace tessera::internal {
namespace {

// A rank's word is kLeft if the rank has left the loop; else its Call, plus kWeighted if its loss
// has a weight.
constexpr int64_t kLeft = -1;
constexpr int64_t kWeighted = 64;

std::string ranks_text(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

}  // namespace

bool JoinProtocol::is_active(int rank) const {
  return std::find(active_.begin(), active_.end(), rank) != active_.end();
}

JoinProtocol::Call JoinProtocol::exchange(const Announcement& mine, bool throws_when_one_ends) {
  calls_.mine()[0] =
      mine.has_left ? kLeft : static_cast<int64_t>(mine.call) + (mine.is_weighted ? kWeighted : 0);
  calls_.exchange("call in a loop over join()");
  std::vector<int> left;
  std::vector<int> over;
  active_.clear();
  bool differ = false;
  bool differ_by_weight = true;  // true if calls differ only in whether losses have weights
  for (int rank = 0; rank < group_.size(); ++rank) {
    const int64_t word = calls_.of(rank)[0];
    if (word == kLeft) {
      left.push_back(rank);
    } else if (word == static_cast<int64_t>(Call::kFollow)) {
      over.push_back(rank);
    } else {
      active_.push_back(rank);
      const int64_t first = calls_.of(active_.front())[0];
      differ = differ || word != first;
      differ_by_weight = differ_by_weight && word % kWeighted == first % kWeighted;
    }
  }
  all_left_ = static_cast<int>(left.size()) == group_.size();
  if (all_left_) return mine.call;
  TORCH_CHECK(left.empty(), "[join] ", ranks_text(left),
              " left the loop over engine->join() while others are in it; leave it on all ranks "
              "after the same step, or run it to its end on all");
  if (active_.empty()) return Call::kFollow;
  lowest_active_ = active_.front();
  TORCH_CHECK(over.empty() || !throws_when_one_ends, "[join] ", ranks_text(over),
              over.size() == 1 ? " has" : " have", " no batches left, ", ranks_text(active_),
              active_.size() == 1 ? " has" : " have",
              "; JoinOptions::throws_when_one_ends was set, give all ranks equally many");
  // Throws on all ranks; the ranks with batches give the text.
  const auto refuse = [&](const auto&... problem) {
    refuse_on_all_ranks(group_, mine.call == Call::kFollow ? "" : absl::StrCat(problem...), "join");
  };
  if (differ && differ_by_weight) {
    refuse(mine.name, mine.is_weighted ? ": with" : ": without",
           " a weight, on others it is the other way; give the losses of all ranks weights, or of "
           "none");
  }
  if (differ) {
    refuse("calls ", mine.name,
           ", others another call; make the same calls on all ranks that have batches");
  }
  const int64_t word = calls_.of(active_.front())[0];
  is_weighted_ = word >= kWeighted;
  const auto call = static_cast<Call>(word % kWeighted);
  if (call == Call::kOther && !over.empty()) {
    refuse(mine.name, ": called while ", ranks_text(over), over.size() == 1 ? " has" : " have",
           " no batches left and cannot take part; call it after the loop over engine->join()");
  }
  return call;
}

}  // namespace tessera::internal

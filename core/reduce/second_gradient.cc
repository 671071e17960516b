// What a Reducer does not take: a second gradient of one parameter within one backward.
#include <c10/util/Exception.h>

#include "tessera/core/reduce/reducer.h"

namespace tessera::internal {

/// Note [Rounds] in reducer.cc.
void Reducer::require_one_gradient(size_t index) const {
  TORCH_CHECK(!is_consumed_, "[grad] '", table_[index].name,
              "': got a second gradient within one backward, expected one; its unit may have been "
              "updated with the first. Leave Options::optimizer_in_backward off, or do not use a "
              "module twice through re-entrant checkpointing");
  TORCH_CHECK(
      setting_.agreement == Setting::Agreement::kInBackward, "[grad] '", table_[index].name,
      "': got a second gradient within one backward, expected one, because ranks do not "
      "tell each other how many there are. Set Options::asynchronous_step to false, or do not "
      "use a module twice through re-entrant checkpointing");
  TORCH_CHECK(communicator_->order() == SumOrder::kRanks, "[grad] '", table_[index].name,
              "': got a second gradient within one backward, expected one, because each is added "
              "over ranks by itself, and that is another order than the micro-batch's own sum. "
              "Leave Options::reproducible out, or do not use a module twice through re-entrant "
              "checkpointing");
}

}  // namespace tessera::internal

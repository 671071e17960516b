#include "tessera/zero/state/lack_remedy.h"

#include <algorithm>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

namespace tessera::internal {

std::string lack_remedy(const StateTable& table, const std::string& problems) {
  if (!absl::StrContains(problems, "': missing")) return "";
  const bool is_of_parameter =
      std::any_of(table.slots().begin(), table.slots().end(), [&](const StateSlot& slot) {
        return slot.parameter.has_value() && !slot.may_lack &&
               absl::StrContains(problems, absl::StrCat("'", slot.name, "': missing"));
      });
  if (!is_of_parameter) return "";
  return "the state of a run that did not train a parameter, or did not have it, lacks entries; "
         "where "
         "that is meant, accept it by PartialState::may_lack";
}

}  // namespace tessera::internal

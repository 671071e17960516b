#include "tessera/zero/state/average_remedy.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "tessera/zero/state/state_numbers.h"

namespace tessera::internal {

std::string average_remedy(const StateTable& table, const std::string& problems) {
  if (!absl::StrContains(problems, absl::StrCat("'", kAveragedUpdates, "': "))) return "";
  return table.find(kAveragedUpdates) != nullptr
             ? "\n  The state has no average of weights, and this run keeps one "
               "(Options::average); load it into an engine without Options::average"
             : "\n  The state has an average of weights, and this run keeps none; set "
               "Options::average as in the run that saved it";
}

}  // namespace tessera::internal

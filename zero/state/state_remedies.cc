#include "tessera/zero/state/state_remedies.h"

#include <algorithm>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/optim/eight_bit/eight_bit.h"
#include "tessera/zero/state/state_numbers.h"

namespace tessera::internal {
namespace {

std::string for_missing(const StateTable& table, const std::string& problems) {
  if (!absl::StrContains(problems, "': missing")) return "";
  const bool is_of_parameter =
      std::any_of(table.slots().begin(), table.slots().end(), [&](const StateSlot& slot) {
        return slot.parameter.has_value() && !slot.may_lack &&
               absl::StrContains(problems, absl::StrCat("'", slot.name, "': missing"));
      });
  if (!is_of_parameter) return "";
  return "the state of a run that did not train a parameter, or did not have it, lacks entries; "
         "where that is meant, accept it by PartialState::may_lack";
}

std::string for_eight_bits(const std::string& problems) {
  const std::string moment = absl::StrCat(".", kFirstMoment.moment, "': ");
  const std::string codes = absl::StrCat(".", kFirstMoment.codes, "': ");
  if (!absl::StrContains(problems, moment) || !absl::StrContains(problems, codes)) return "";
  const bool wants_codes = absl::StrContains(problems, absl::StrCat(codes, "missing"));
  const char* const what =
      wants_codes ? "This run keeps moments in 8 bits, and the state has them in the masters' "
                    "dtype; apply tessera::quantize_state()"
                  : "The state has moments in 8 bits, and this run keeps them in the masters' "
                    "dtype; apply tessera::dequantize_state()";
  return absl::StrCat(what,
                      " to the StateDict on each rank, then load_state_dict(); a checkpoint is "
                      "first loaded by an engine with the options that saved it");
}

std::string for_average(const StateTable& table, const std::string& problems) {
  if (!absl::StrContains(problems, absl::StrCat("'", kAveragedUpdates, "': "))) return "";
  return table.find(kAveragedUpdates) != nullptr
             ? "The state has no average of weights, and this run keeps one (Options::average); "
               "load it into an engine without Options::average"
             : "The state has an average of weights, and this run keeps none; set "
               "Options::average as in the run that saved it";
}

}  // namespace

std::string with_remedies(const StateTable& table, const std::string& problems) {
  // Remedies first, because long texts are cut at the end.
  std::vector<std::string> lines = {for_missing(table, problems), for_eight_bits(problems),
                                    for_average(table, problems), problems};
  std::erase(lines, "");
  return absl::StrJoin(lines, "\n  ");
}

}  // namespace tessera::internal

#include "tessera/zero/state/eight_bit_remedy.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "tessera/optim/eight_bit.h"

namespace tessera::internal {

std::string eight_bit_remedy(const std::string& problems) {
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
                      "first loaded by an engine with the options that saved it\n  ");
}

}  // namespace tessera::internal

#include "tessera/tests/prove/sharded/misuse.h"

#include <map>
#include <string>

#include <c10/util/Exception.h>

namespace prove {

Misuse parse_misuse(std::string_view text) {
  static const std::map<std::string_view, Misuse> names = {{"none", Misuse::kNone},
                                                           {"die", Misuse::kDie},
                                                           {"other_call", Misuse::kOtherCall},
                                                           {"nan", Misuse::kNan}};
  const auto it = names.find(text);
  TORCH_CHECK(it != names.end(), "[prove] --misuse: got '", std::string(text),
              "', expected none, die, other_call or nan");
  return it->second;
}

}  // namespace prove

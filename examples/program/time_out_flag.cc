#include "tessera/examples/program/time_out_flag.h"

#include <algorithm>
#include <cstdint>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include "tessera/time_out.h"

namespace program {

using std::chrono::milliseconds;
using std::chrono::seconds;

bool AbslParseFlag(absl::string_view text, TimeOutFlag* flag, std::string* error) {
  if (text == "none") {
    flag->timeout = milliseconds::max();
    return true;
  }
  const bool digits_only = text.find_first_not_of("0123456789") == absl::string_view::npos;
  int64_t count = 0;
  if (!digits_only || !absl::SimpleAtoi(text, &count) || count < 1) {
    *error = absl::StrCat("got '", text, "', expected a whole number of seconds from 1, or none");
    return false;
  }
  // Longer time-outs have the same effect, and would overflow as milliseconds.
  const seconds longest = std::chrono::ceil<seconds>(tessera::kMaxTimeOut);
  flag->timeout = std::min(seconds(count), longest);
  return true;
}

std::string AbslUnparseFlag(const TimeOutFlag& flag) {
  if (flag.timeout == milliseconds::max()) return "none";
  return absl::StrCat(std::chrono::duration_cast<seconds>(flag.timeout).count());
}

}  // namespace program

#include "tessera/weight_average.h"

#include <absl/strings/str_cat.h>

#include "tessera/core/numbers/number_text.h"

namespace tessera {

std::vector<std::string> problems_of(const WeightAverage& average) {
  std::vector<std::string> problems;
  const double decay = average.decay.value_or(0.0);
  if (!(decay >= 0.0 && decay < 1.0)) {  // NaN fails too
    problems.push_back(
        absl::StrCat("average.decay: got ", internal::number_text(decay),
                     "; allowed [0, 1); 0.999 suits most runs, leave it out for the mean"));
  }
  const auto check = [&problems](const char* name, int64_t value, const char* remedy) {
    if (value >= 1) return;
    problems.push_back(
        absl::StrCat("average.", name, ": got ", value, "; allowed 1 or more; ", remedy));
  };
  check("start_step", average.start_step, "leave it out to average from the first step on");
  check("every", average.every, "leave it out to average every step");
  return problems;
}

}  // namespace tessera

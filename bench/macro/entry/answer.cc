#include "tessera/bench/macro/entry/answer.h"

#include <cstdio>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

namespace bench {
namespace {

std::string number(double value) { return absl::StrFormat("%.9g", value); }

}  // namespace

Answer::Answer(std::string_view event)
    : text_(absl::StrCat("{\"event\":\"", std::string(event), "\"")) {}

Answer& Answer::add(std::string_view name, int64_t value) {
  absl::StrAppend(&text_, ",\"", std::string(name), "\":", value);
  return *this;
}

Answer& Answer::add(std::string_view name, double value) {
  absl::StrAppend(&text_, ",\"", std::string(name), "\":", number(value));
  return *this;
}

Answer& Answer::add(std::string_view name, const std::vector<double>& values) {
  const auto append = [](std::string* out, double value) { out->append(number(value)); };
  absl::StrAppend(&text_, ",\"", std::string(name), "\":[", absl::StrJoin(values, ",", append),
                  "]");
  return *this;
}

void Answer::send() const {
  std::printf("%s}\n", text_.c_str());
  std::fflush(stdout);
}

}  // namespace bench

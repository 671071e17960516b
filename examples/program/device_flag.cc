#include "tessera/examples/program/device_flag.h"

#include <limits>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

namespace program {

bool AbslParseFlag(absl::string_view text, DeviceFlag* flag, std::string* error) {
  if (text == "cpu" || text == "cuda") {
    flag->device = text == "cpu" ? at::kCPU : at::kCUDA;
    return true;
  }
  int index = -1;
  if (absl::StartsWith(text, "cuda:") && absl::SimpleAtoi(text.substr(5), &index) && index >= 0 &&
      index <= std::numeric_limits<c10::DeviceIndex>::max()) {
    flag->device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
    return true;
  }
  *error = absl::StrCat("got '", text, "', expected cpu, cuda or cuda:<index>");
  return false;
}

std::string AbslUnparseFlag(const DeviceFlag& flag) { return flag.device.str(); }

}  // namespace program

#pragma once

#include <string>

#include <absl/strings/string_view.h>
#include <c10/core/Device.h>

namespace program {

/// A device on the command line: cpu, cuda or cuda:<index>.
struct DeviceFlag {
  at::Device device = at::kCPU;
};

bool AbslParseFlag(absl::string_view text, DeviceFlag* flag, std::string* error);
std::string AbslUnparseFlag(const DeviceFlag& flag);

}  // namespace program

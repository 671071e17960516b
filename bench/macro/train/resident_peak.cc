#include "tessera/bench/macro/train/resident_peak.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include <torch/torch.h>

namespace bench {
namespace {

int64_t status_kib(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field + ":", 0) != 0) continue;
    int64_t kib = 0;
    std::istringstream(line.substr(field.size() + 1)) >> kib;
    return kib;
  }
  return 0;
}

}  // namespace

ResidentPeak::ResidentPeak() {
  ::malloc_trim(0);
  std::ofstream reset("/proc/self/clear_refs");
  reset << "5" << std::flush;  // the peak is now the current resident size
  TORCH_CHECK(reset, "[bench] memory: cannot write /proc/self/clear_refs");
  before_kib_ = status_kib("VmRSS");
}

int64_t ResidentPeak::growth_kib() const {
  return std::max<int64_t>(0, status_kib("VmHWM") - before_kib_);
}

}  // namespace bench

#pragma once

#include <cstdint>

namespace bench {

/// What the resident memory of this process grows by at most after this is made, the heap trimmed
/// before. Linux's VmHWM.
class ResidentPeak {
 public:
  /// Throws c10::Error where the kernel does not let the peak be reset (/proc/self/clear_refs).
  ResidentPeak();

  int64_t growth_kib() const;

 private:
  int64_t before_kib_ = 0;
};

}  // namespace bench

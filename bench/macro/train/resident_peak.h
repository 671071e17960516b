#pragma once

#include <cstdint>

namespace bench {

/// The largest growth of this process's resident memory since construction, which first trims the
/// heap. Linux's VmHWM.
class ResidentPeak {
 public:
  /// Throws c10::Error if the kernel does not allow resetting the peak (/proc/self/clear_refs).
  ResidentPeak();

  int64_t growth_kib() const;

 private:
  int64_t before_kib_ = 0;
};

}  // namespace bench

#pragma once

#include <cstdint>

namespace bench {

/// The kernel's counts for this process, all threads together.
struct ProcessNumbers {
  double cpu_ms = 0.0;       ///< user and system
  int64_t minor_faults = 0;  ///< pages touched for the first time
  int64_t involuntary_switches = 0;

  static ProcessNumbers now();
};

/// Private memory and this process's share of shared buffers in KiB (Pss_Anon + Pss_Shmem of
/// /proc/self/smaps_rollup), without the text of programs and libraries, which is in the page
/// cache. 0 if the kernel does not report it.
int64_t private_kib();

}  // namespace bench

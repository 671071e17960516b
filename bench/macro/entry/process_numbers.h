#pragma once

#include <cstdint>

namespace bench {

/// What the kernel counts for this process, all threads.
struct ProcessNumbers {
  double cpu_ms = 0.0;       ///< user and system
  int64_t minor_faults = 0;  ///< pages that were touched for the first time
  int64_t involuntary_switches = 0;

  static ProcessNumbers now();
};

/// KiB of private memory and this process's part of shared buffers (Pss_Anon + Pss_Shmem of
/// /proc/self/smaps_rollup): without the text of programs and libraries, which the page cache
/// holds. 0 where the kernel does not say.
int64_t private_kib();

}  // namespace bench

#include "tessera/bench/macro/entry/process_numbers.h"

#include <fstream>
#include <string>

#include <sys/resource.h>

namespace bench {
namespace {

double milliseconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) * 1e-3;
}

}  // namespace

ProcessNumbers ProcessNumbers::now() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return {.cpu_ms = milliseconds(usage.ru_utime) + milliseconds(usage.ru_stime),
          .minor_faults = usage.ru_minflt,
          .involuntary_switches = usage.ru_nivcsw};
}

int64_t private_kib() {
  std::ifstream file("/proc/self/smaps_rollup");
  int64_t total = 0;
  for (std::string word; file >> word;) {
    if (word != "Pss_Anon:" && word != "Pss_Shmem:") continue;
    int64_t kib = 0;
    file >> kib;
    total += kib;
  }
  return total;
}

}  // namespace bench

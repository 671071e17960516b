#pragma once

#include <map>
#include <string>
#include <vector>

namespace tessera::internal {

/// How a job of several ranks changes the variables by which OpenMP binds threads to cores. All
/// ranks inherit the same variables, so without changes each rank would bind to the same first
/// cores.
struct ThreadBinding {
  /// Variables that a rank gets in place of those that it would inherit.
  std::map<std::string, std::string> variables;
  /// A message for the user, once for all ranks; "" if there is none.
  std::string remark;
};

/// Returns the binding for rank `rank` of `ranks` in a job that may run on `cores`. If `inherited`
/// ("NAME=value" strings) asks for bound threads, OMP_PLACES gives each rank a share of the cores;
/// with fewer cores than ranks, nothing is bound. A list of cores that the user has set is kept.
ThreadBinding thread_binding(const std::vector<std::string>& inherited, int rank, int ranks,
                             const std::vector<int>& cores);

}  // namespace tessera::internal

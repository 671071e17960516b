#pragma once

#include <map>
#include <string>
#include <vector>

namespace tessera::internal {

/// What becomes of the variables by which OpenMP binds threads to cores in a job of several ranks.
/// All ranks read the same ones, so each would take the same cores, the first ones.
struct ThreadBinding {
  /// That a rank gets in place of what it would inherit.
  std::map<std::string, std::string> variables;
  /// What the user is told, once for all ranks; "" if nothing.
  std::string remark;
};

/// Of rank `rank` of `ranks` in a job that may run on `cores`. Where `inherited` ("NAME=value"
/// strings) asks for bound threads, OMP_PLACES gives each rank a share of the cores; with fewer
/// cores than ranks, nothing is bound. A list of cores that the user has written stays.
ThreadBinding thread_binding(const std::vector<std::string>& inherited, int rank, int ranks,
                             const std::vector<int>& cores);

}  // namespace tessera::internal

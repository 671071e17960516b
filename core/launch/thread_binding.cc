#include "tessera/core/launch/thread_binding.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/launch/worker_environment.h"

namespace tessera::internal {
namespace {

/// Returns the name of the variable in which the user lists cores; "" if there is none.
std::string list_of_cores(const std::vector<std::string>& inherited) {
  // A word, as in OMP_PLACES=cores, defines what a place is but does not list cores.
  const std::string places = value_of(inherited, "OMP_PLACES");
  if (!places.empty() && !absl::ascii_isalpha(static_cast<unsigned char>(places[0]))) {
    return "OMP_PLACES";
  }
  if (!value_of(inherited, "GOMP_CPU_AFFINITY").empty()) return "GOMP_CPU_AFFINITY";
  const std::string intel = absl::AsciiStrToLower(value_of(inherited, "KMP_AFFINITY"));
  const bool is_off = absl::StrContains(intel, "none") || absl::StrContains(intel, "disabled");
  return intel.empty() || is_off ? "" : "KMP_AFFINITY";
}

}  // namespace

ThreadBinding thread_binding(const std::vector<std::string>& inherited, int rank, int ranks,
                             const std::vector<int>& cores) {
  const std::string bind = value_of(inherited, "OMP_PROC_BIND");
  if (ranks == 1 || absl::EqualsIgnoreCase(bind, "false")) return {};
  if (const std::string list = list_of_cores(inherited); !list.empty()) {
    return {{},
            absl::StrCat(list, " is set, by which all ", ranks, " workers may bind their threads ",
                         "to the same cores; with OMP_PROC_BIND=true in its place each gets cores ",
                         "of its own")};
  }
  const char* const name = bind.empty() ? "OMP_PLACES" : "OMP_PROC_BIND";
  if (value_of(inherited, name).empty()) return {};
  const size_t share = cores.size() / static_cast<size_t>(ranks);
  if (share == 0) {
    return {{{"OMP_PROC_BIND", "false"}},
            absl::StrCat(name, " is set, but ", ranks, " workers have ", cores.size(),
                         cores.size() == 1 ? " core" : " cores", ": their threads are not bound")};
  }
  std::string places;
  for (size_t i = 0; i < share; ++i) {
    absl::StrAppend(&places, i == 0 ? "" : ",", "{", cores[static_cast<size_t>(rank) * share + i],
                    "}");
  }
  return {{{"OMP_PLACES", places}},
          absl::StrCat(name, " is set; giving each of ", ranks, " workers ", share,
                       share == 1 ? " core" : " cores", " of its own (OMP_PLACES)")};
}

}  // namespace tessera::internal

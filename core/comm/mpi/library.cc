#include "tessera/core/comm/mpi/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/library/entry_points.h"
#include "tessera/core/library/module_library.h"

namespace tessera::internal::mpi {
namespace {

constexpr const char* kVariable = "TESSERA_MPI";
constexpr const char* kRemedy =
    "install the MPI whose mpirun starts the program (Debian: openmpi-bin or mpich), or set "
    "TESSERA_MPI to openmpi, mpich or the path of its libmpi";

/// A family of MPIs whose binary interfaces are one.
struct Abi {
  const char* name;
  std::vector<const char*> files;  ///< what its library is called
  std::vector<const char*> signs;  ///< variables that its launchers set
  ModuleLibrary module;
};

const std::vector<Abi>& abis() {
  static const std::vector<Abi> all = {
      {"openmpi",
       {"libmpi.so.40", "libmpi.so.80"},
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK"},
       {.part = "mpi",
        .file = "libtessera_mpi_openmpi.so",
        .variable = "TESSERA_MPI_MODULE",
        .what = "Tessera's module for Open MPI",
        .remedy = "build Tessera where CMake finds the headers of Open MPI (cmake/bootstrap.sh "
                  "--mpi fetches them), or set TESSERA_MPI_MODULE to its path"}},
      {"mpich",
       {"libmpi.so.12", "libmpich.so.12"},
       {"PMI_RANK", "PMI_FD", "MV2_COMM_WORLD_RANK"},
       {.part = "mpi",
        .file = "libtessera_mpi_mpich.so",
        .variable = "TESSERA_MPI_MODULE",
        .what = "Tessera's module for MPICH",
        .remedy = "build Tessera where CMake finds the headers of MPICH (cmake/bootstrap.sh --mpi "
                  "fetches them), or set TESSERA_MPI_MODULE to its path"}},
  };
  return all;
}

/// Which ABI the MPI has whose symbols are there.
const Abi& abi_of(void* library) {
  return abis()[::dlsym(library, "ompi_mpi_comm_world") != nullptr ? 0 : 1];
}

bool is_path(const std::string& named) { return absl::StrContains(named, '/'); }

/// The ABI whose launchers set a variable of which `is_set` holds, or null.
const Abi* abi_with(const std::function<bool(const char*)>& is_set) {
  for (const Abi& abi : abis()) {
    if (std::any_of(abi.signs.begin(), abi.signs.end(), is_set)) return &abi;
  }
  return nullptr;
}

/// The ABIs to try, the likely one first.
std::vector<const Abi*> candidates(const EnvironmentLookup& lookup, const std::string& named) {
  for (const Abi& abi : abis()) {
    if (named == abi.name) return {&abi};
  }
  // In another MPI than its launcher's every process would be a world of one. The variables of an
  // outer launcher may be there, too: who says the rank comes first.
  const auto environment = read_environment(lookup, {.store = false});
  const std::string says_rank = environment.ok() ? environment->rank_variable : std::string();
  const Abi* launchers = abi_with([&](const char* sign) { return says_rank == sign; });
  if (launchers == nullptr)
    launchers = abi_with([&](const char* sign) { return lookup(sign).has_value(); });
  if (launchers != nullptr) return {launchers};
  return {&abis()[0], &abis()[1]};
}

absl::StatusOr<Library> with_module(const Abi& abi, void* library,
                                    const EnvironmentLookup& lookup) {
  const absl::StatusOr<void*> module = open_module(abi.module, lookup);
  if (!module.ok()) return module.status();
  const std::string path = path_of_library(*module);
  const tessera::mpi::Calls* (*calls)() = nullptr;
  const char* (*module_abi)() = nullptr;
  EntryPoints entries(*module);
  entries.require(calls, "tessera_mpi_calls");
  entries.require(module_abi, "tessera_mpi_abi");
  absl::Status complete = require_none_missing(abi.module, path, entries.missing());
  if (!complete.ok()) return complete;
  if (std::string_view(module_abi()) != abi.name) {
    return absl::FailedPreconditionError(
        absl::StrCat("[mpi] module: got '", path, "', which is for the ABI of ", module_abi(),
                     ", expected ", abi.module.what, ", as ", path_of_library(library), " is of ",
                     abi.name, "; ", abi.module.remedy, ", or TESSERA_MPI to the other MPI"));
  }
  Library found{.path = path_of_library(library), .abi = abi.name, .calls = calls()};
  if (found.calls->version != tessera::mpi::Calls::kVersion) {
    return other_interface(abi.module, path, found.calls->version, tessera::mpi::Calls::kVersion);
  }
  return found;
}

absl::StatusOr<Library> load(const EnvironmentLookup& lookup) {
  if (::dlsym(RTLD_DEFAULT, "MPI_Init_thread") != nullptr) {
    return with_module(abi_of(RTLD_DEFAULT), nullptr, lookup);
  }
  const std::string named = lookup(kVariable).value_or("");
  if (!named.empty() && !is_path(named) && named != abis()[0].name && named != abis()[1].name) {
    return absl::InvalidArgumentError(
        absl::StrCat("[mpi] ", kVariable, ": got '", named,
                     "', expected openmpi, mpich or the path of a libmpi; ", kRemedy));
  }
  std::vector<std::string> failures;
  if (is_path(named)) {
    void* const library = ::dlopen(named.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library != nullptr) return with_module(abi_of(library), library, lookup);
    failures.push_back(loader_error());
  } else {
    for (const Abi* abi : candidates(lookup, named)) {
      for (const char* file : abi->files) {
        void* const library = ::dlopen(file, RTLD_NOW | RTLD_GLOBAL);
        if (library != nullptr) return with_module(*abi, library, lookup);
        failures.push_back(loader_error());
      }
    }
  }
  return absl::NotFoundError(absl::StrCat(
      "[mpi] library: got none (", absl::StrJoin(failures, "; "), "), expected an MPI; ", kRemedy));
}

}  // namespace

absl::StatusOr<Library> load_library(const EnvironmentLookup& lookup) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  static absl::StatusOr<Library> opened = absl::UnknownError("not opened yet");
  if (!opened.ok()) opened = load(lookup);  // there can be one MPI in a process
  return opened;
}

}  // namespace tessera::internal::mpi

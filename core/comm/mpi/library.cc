#include "tessera/core/comm/mpi/library.h"

#include <dlfcn.h>

#include <mutex>
#include <string>
#include <vector>

#include <absl/algorithm/container.h>
#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/library/entry_points.h"
#include "tessera/core/library/module_library.h"
#include "tessera/environment.h"

namespace tessera::internal::mpi {
namespace {

constexpr const char* kRemedy =
    "install the MPI whose mpirun starts the program (Debian: openmpi-bin or mpich), or set "
    "TESSERA_MPI to openmpi, mpich or the path of its libmpi";

constexpr const char* kModuleRemedy =
    "build Tessera where CMake finds the headers of this MPI (cmake/bootstrap.sh --mpi fetches "
    "them), or set TESSERA_MPI_MODULE to its path";

/// A family of MPIs that share a binary interface.
struct Abi {
  std::string name;
  std::vector<std::string> files;  ///< The file names that libraries of the family have.
  std::vector<std::string> signs;  ///< variables that its launchers set
};

const std::vector<Abi>& abis() {
  static const std::vector<Abi> all = {
      {"openmpi",
       {"libmpi.so.40", "libmpi.so.80"},
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK"}},
      {"mpich", {"libmpi.so.12", "libmpich.so.12"}, {"PMI_RANK", "PMI_FD", "MV2_COMM_WORLD_RANK"}},
  };
  return all;
}

/// Returns the ABI of the MPI in `library`.
const Abi& abi_of(void* library) {
  return abis()[::dlsym(library, "ompi_mpi_comm_world") != nullptr ? 0 : 1];
}

/// Returns the files to try, the likeliest first.
std::vector<std::string> files_to_try() {
  const std::string named = process_environment("TESSERA_MPI").value_or("");
  for (const Abi& abi : abis()) {
    if (named == abi.name) return abi.files;
  }
  if (!named.empty()) return {named};
  // The MPI must be the launcher's: with another MPI every process would be a world of one rank.
  // Variables of an outer launcher may be set, too, so the variable that gives this process its
  // rank is considered first.
  const auto environment = read_environment(process_environment, {.store = false});
  const std::string says_rank = environment.ok() ? environment->rank_variable : std::string();
  for (const Abi& abi : abis()) {
    if (absl::c_linear_search(abi.signs, says_rank)) return abi.files;
  }
  for (const Abi& abi : abis()) {
    for (const std::string& sign : abi.signs) {
      if (process_environment(sign.c_str()).has_value()) return abi.files;
    }
  }
  std::vector<std::string> all = abis()[0].files;
  all.insert(all.end(), abis()[1].files.begin(), abis()[1].files.end());
  return all;
}

absl::StatusOr<const Calls*> with_module(const Abi& abi) {
  const std::string file = absl::StrCat("libtessera_mpi_", abi.name, ".so");
  const std::string what = absl::StrCat("Tessera's module for ", abi.name);
  const ModuleLibrary library{.part = "mpi",
                              .file = file.c_str(),
                              .variable = "TESSERA_MPI_MODULE",
                              .what = what.c_str(),
                              .remedy = kModuleRemedy};
  const absl::StatusOr<void*> module = open_module(library, process_environment);
  if (!module.ok()) return module.status();
  const std::string path = path_of_library(*module);
  const Calls* (*calls)() = nullptr;
  EntryPoints entries(*module);
  entries.require(calls, "tessera_mpi_calls");
  absl::Status complete = require_none_missing(library, path, entries.missing());
  if (!complete.ok()) return complete;
  if (calls()->version != Calls::kVersion) {
    return other_interface(library, path, calls()->version, Calls::kVersion);
  }
  return calls();
}

absl::StatusOr<const Calls*> load() {
  if (::dlsym(RTLD_DEFAULT, "MPI_Init_thread") != nullptr) {
    return with_module(abi_of(RTLD_DEFAULT));
  }
  std::vector<std::string> failures;
  for (const std::string& file : files_to_try()) {
    void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library != nullptr) return with_module(abi_of(library));
    failures.push_back(loader_error());
  }
  return absl::NotFoundError(absl::StrCat(
      "[mpi] library: got none (", absl::StrJoin(failures, "; "), "), expected an MPI; ", kRemedy));
}

}  // namespace

absl::StatusOr<const Calls*> load_library() {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  static absl::StatusOr<const Calls*> opened = absl::UnknownError("not opened yet");
  if (!opened.ok())
    opened = load();  // If an MPI is open, it stays: a process can have only one MPI.
  return opened;
}

}  // namespace tessera::internal::mpi

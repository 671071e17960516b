#pragma once

#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/environment.h"

namespace tessera::internal {

/// A shared library of Tessera that is opened on demand, and the texts for its errors.
struct ModuleLibrary {
  const char* part;      ///< its name in messages: "cuda", "graph"
  const char* file;      ///< "libtessera_cuda.so"
  const char* variable;  ///< environment variable that may hold its path
  const char* what;      ///< "Tessera's module for GPUs"
  const char* remedy;    ///< how to get one
};

/// Local. Opens it; never closes it. Looked for in this order: the path in the variable, if it is
/// set, and nowhere else; beside the program and in ../lib and ../lib64 from there (build trees and
/// installed prefixes); beside the library that this code was linked into, if that is not the
/// program; where the loader looks, which for programs of CMake's find_package(Tessera) are also
/// the libraries of the prefix that it found (a run path). All its symbols are resolved at once.
/// The error says what was looked for, where, why that failed, and what to do.
absl::StatusOr<void*> open_module(const ModuleLibrary& module, const EnvironmentLookup& lookup);

/// Returns the error of a module at `path` whose interface has another version than the caller's.
absl::Status other_interface(const ModuleLibrary& module, const std::string& path, int version,
                             int expected);
/// Returns the error of one that lacks entry points; OK if `missing` is empty.
absl::Status require_none_missing(const ModuleLibrary& module, const std::string& path,
                                  const std::vector<std::string>& missing);

}  // namespace tessera::internal

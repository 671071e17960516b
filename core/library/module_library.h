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
  const char* remedy;    ///< how to get the library
};

/// Local. Opens `module`; never closes it. If its environment variable is set, opens that path and
/// looks nowhere else. Otherwise looks beside the program and in ../lib and ../lib64 from there
/// (build trees and installed prefixes), then beside the library that contains this code, if that
/// is not the program, then where the loader looks. Programs built with CMake's
/// find_package(Tessera) have a run path, so for them the loader also looks in the library folder
/// of the prefix that CMake found. Resolves all symbols at once. The error says what was looked for
/// and where, why that failed, and what to do.
absl::StatusOr<void*> open_module(const ModuleLibrary& module, const EnvironmentLookup& lookup);

/// Returns the error for a module at `path` that has interface `version` instead of `expected`.
absl::Status other_interface(const ModuleLibrary& module, const std::string& path, int version,
                             int expected);
/// Returns the error for a module at `path` that lacks the entry points `missing`; OK if that is
/// empty.
absl::Status require_none_missing(const ModuleLibrary& module, const std::string& path,
                                  const std::vector<std::string>& missing);

}  // namespace tessera::internal

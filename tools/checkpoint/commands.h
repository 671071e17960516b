#pragma once

#include <cstdio>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/checkpoint/files/file_operations.h"

namespace tessera::internal {

// The commands of tessera-checkpoint. A `path` is a step, or the directory of a run, which stands
// for its newest step. Results go to `out`; errors are those of the file system or the reader.
// A command holds kChunkBytes of a checkpoint in memory at a time, or one entry if its elements
// have to be reordered.

/// Prints what a step is made of.
absl::Status print_info(FileSystem& files, const std::string& path, std::FILE* out);

/// Reads every byte of a step, or of all steps of a run. Returns true if all are whole.
absl::StatusOr<bool> verify_steps(FileSystem& files, const std::string& path, std::FILE* out);

/// Compares all entries of two steps, bit for bit, whatever ranks saved them. Returns true if they
/// are equal; prints differences, one line each.
absl::StatusOr<bool> compare_steps(FileSystem& files, const std::string& path,
                                   const std::string& other, std::FILE* out);

/// Writes the model of a step (its parameters and buffers) as one safetensors file of whole,
/// row-major tensors under the model's own names. AlreadyExists if `to` exists.
absl::Status export_model(FileSystem& files, const std::string& path, const std::string& to,
                          std::FILE* out);

/// Makes step 0 of a new run in `directory` from the tensors of `from`, a safetensors file or the
/// index of several. The step holds a model alone, which load_checkpoint() gives to an engine.
/// AlreadyExists if the directory has steps.
absl::Status import_model(FileSystem& files, const std::string& from, const std::string& directory,
                          std::FILE* out);

}  // namespace tessera::internal

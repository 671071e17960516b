#pragma once

#include <cstdio>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/checkpoint/files/file_operations.h"

namespace tessera::internal {

// The commands of tessera-checkpoint. A `path` is a step, or the directory of a run, which means
// its newest step. Results go to `out`; errors are those of the file system or the reader. The
// commands keep kChunkBytes of a checkpoint in memory, or a whole entry if it must be reordered.

/// Prints the contents of a step.
absl::Status print_info(FileSystem& files, const std::string& path, std::FILE* out);

/// Reads every byte of a step, or of all steps of a run. Returns true if all are intact.
absl::StatusOr<bool> verify_steps(FileSystem& files, const std::string& path, std::FILE* out);

/// Compares all entries of two steps bit for bit; the ranks that saved them do not matter. Returns
/// true if they are equal; prints differences, one per line.
absl::StatusOr<bool> compare_steps(FileSystem& files, const std::string& path,
                                   const std::string& other, std::FILE* out);

/// Writes the model of a step (its parameters and buffers) as one safetensors file of whole,
/// row-major tensors with the model's own names. AlreadyExists if `to` exists.
absl::Status export_model(FileSystem& files, const std::string& path, const std::string& to,
                          std::FILE* out);

/// Creates step 0 of a new run in `directory` from the tensors of `from`, a safetensors file or the
/// index of several. The step contains only a model, which load_checkpoint() gives to an engine.
/// AlreadyExists if the directory has steps.
absl::Status import_model(FileSystem& files, const std::string& from, const std::string& directory,
                          std::FILE* out);

}  // namespace tessera::internal

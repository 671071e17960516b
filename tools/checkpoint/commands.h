#pragma once

#include <cstdio>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/checkpoint/files/file_operations.h"

namespace tessera::internal {

// The commands of tessera-checkpoint. A `path` is a step, or the directory of a run, whose newest
// step is meant. What they find goes to `out`, and an error is the file system's or the reader's.
// They keep kChunkBytes of a checkpoint in memory, and one entry where it has to be put in order.

/// What a step is made of.
absl::Status print_info(FileSystem& files, const std::string& path, std::FILE* out);

/// Reads every byte of a step, or of all steps of a run. Whether all are whole.
absl::StatusOr<bool> verify_steps(FileSystem& files, const std::string& path, std::FILE* out);

/// Compares all entries of two steps, bit for bit, whatever ranks saved them. Whether they are
/// equal; differences are printed, one line each.
absl::StatusOr<bool> compare_steps(FileSystem& files, const std::string& path,
                                   const std::string& other, std::FILE* out);

/// Writes the model of a step (its parameters and buffers) as one safetensors file of whole,
/// row-major tensors under the model's own names. AlreadyExists where `to` exists.
absl::Status export_model(FileSystem& files, const std::string& path, const std::string& to,
                          std::FILE* out);

/// Makes step 0 of a new run in `directory` of the tensors of `from`, a safetensors file or the
/// index of several: a model alone, which load_checkpoint() gives to an engine. AlreadyExists where
/// the directory has steps.
absl::Status import_model(FileSystem& files, const std::string& from, const std::string& directory,
                          std::FILE* out);

}  // namespace tessera::internal

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/step/step_reader.h"

namespace tessera::internal {

/// The largest part of a checkpoint that a program keeps in memory at a time.
inline constexpr int64_t kChunkBytes = 1 << 20;

/// The error for a path that is neither a step nor a run with steps.
absl::Status no_step_at(const std::string& path);

/// Opens `path`: a step, or the directory of a run, whose newest step it opens.
absl::StatusOr<std::unique_ptr<StepReader>> open_step(FileSystem& files, const std::string& path);

/// Reads the entry `name` from start to end and calls `use` with at most kChunkBytes at a time and
/// the number of the first element in them.
absl::Status for_each_chunk(
    StepReader& reader, const std::string& name,
    const std::function<absl::Status(int64_t first, absl::Span<char> bytes)>& use);

}  // namespace tessera::internal

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

/// How many bytes of a checkpoint the program holds in memory at a time.
inline constexpr int64_t kChunkBytes = 1 << 20;

/// The error for a path that is neither a step nor a run with steps.
absl::Status no_step_at(const std::string& path);

/// Opens `path`: a step, or the directory of a run, of which it opens the newest step.
absl::StatusOr<std::unique_ptr<StepReader>> open_step(FileSystem& files, const std::string& path);

/// Reads the entry `name` from its first byte to its last. Calls `use` with at most kChunkBytes at
/// a time, and with the number of the first element among them.
absl::Status for_each_chunk(
    StepReader& reader, const std::string& name,
    const std::function<absl::Status(int64_t first, absl::Span<char> bytes)>& use);

}  // namespace tessera::internal

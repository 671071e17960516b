#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace memory_compare {

/// Runs `body` in a forked child and returns its result, so that what it leaves behind (allocator,
/// mappings) is not counted to whoever comes next. The child dies with this process. Blocks until
/// it has ended. Throws std::runtime_error if the body throws (the child has printed what) or the
/// child dies. Call it from a process without further threads: only the calling one exists in the
/// child.
std::vector<int64_t> run_in_fresh_process(const std::function<std::vector<int64_t>()>& body);

}  // namespace memory_compare

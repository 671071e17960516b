#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace memory_compare {

/// Runs `body` in a forked child and returns its result, so that memory that it leaves behind
/// (allocator, mappings) does not count for later bodies. Blocks until the child has ended; if this
/// process dies, the child is killed. Throws std::runtime_error if the body throws (the child
/// prints the error) or the child dies. Call it from a process with a single thread, because only
/// the calling thread exists in the child.
std::vector<int64_t> run_in_fresh_process(const std::function<std::vector<int64_t>()>& body);

}  // namespace memory_compare

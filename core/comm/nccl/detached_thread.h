#pragma once

#include <functional>

namespace tessera::internal::nccl {

/// Runs `run` in a thread that nothing joins before the process ends. At exit(), or when main()
/// returns, `ask_to_end` (may be null) is called from another thread, and the thread gets five
/// seconds to end before static objects that it may use (of LibTorch, NCCL, a store) are destroyed,
/// if they were made before the first call of this function. A child of fork() has no such threads.
/// Local.
void run_detached(std::function<void()> run, std::function<void()> ask_to_end = nullptr);

}  // namespace tessera::internal::nccl

#pragma once

#include <functional>

namespace tessera::internal::nccl {

/// Runs `run` in a thread that nobody waits for, until the process ends: what it uses (LibTorch,
/// NCCL, a store) is destroyed then. At exit(), or when main() returns, `ask_to_end` (may be null)
/// is called, on that thread's behalf from another one, and the thread gets five seconds to end
/// before anything is destroyed that was there before the first call of this. A process that a
/// fork() makes has no such threads and asks none. Local.
void run_unowned(std::function<void()> run, std::function<void()> ask_to_end = nullptr);

}  // namespace tessera::internal::nccl

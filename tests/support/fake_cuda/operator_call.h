#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace tessera::internal::testing {

/// Runs any operator on device tensors: waits until the calling thread's current stream of their
/// device is idle, then runs the CPU's kernel on the same memory, in the call. Random numbers come
/// from the device's generator. Throws c10::Error as LibTorch's CUDA half does if tensors are on
/// different devices. Views do not touch memory, so they do not wait.
void call_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Runs the CPU's kernel on CPU tensors; does not wait or count.
void run_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);
/// Call it before running an operator without call_on_cpu(): counts it, and waits as that does.
void begin_operator(int device);
/// Counts that the host waited for a device.
void count_host_sync(int device);

}  // namespace tessera::internal::testing

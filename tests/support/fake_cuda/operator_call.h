#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace tessera::internal::testing {

/// Any operator on device tensors: waits until the calling thread's current stream of their device
/// is done, then runs the CPU's kernel on the same memory, in the call. Random numbers are the
/// device's. Throws c10::Error as LibTorch's CUDA half does if tensors lie on different devices.
/// Views, which do not touch memory, wait for nothing.
void call_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// The CPU's kernel on CPU tensors; waits for nothing and counts nothing.
void run_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);
/// An operator is to be run beside that: counts it, and waits as it does.
void begin_operator(int device);
/// The host has waited for a device.
void count_host_sync(int device);

}  // namespace tessera::internal::testing

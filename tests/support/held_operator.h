#pragma once

#include <future>
#include <thread>

#include <ATen/core/Tensor.h>

namespace tessera::internal::testing {

/// An operator of another thread that stops in its midst: it has asked for the address of its input
/// and goes on reading there when it is told to.
class HeldOperator {
 public:
  /// `input`: contiguous, on the CPU. Returns when the operator has the address. Throws what the
  /// operator throws instead.
  explicit HeldOperator(const at::Tensor& input);
  ~HeldOperator();
  HeldOperator(const HeldOperator&) = delete;
  HeldOperator& operator=(const HeldOperator&) = delete;

  /// What lies at that address now.
  at::Tensor look() const;

  /// Lets the operator go on and waits until it and its thread have ended. Returns what it read.
  at::Tensor end();

  /// What the operator and the test tell each other.
  struct Meeting {
    std::promise<const void*> inside;
    std::promise<void> go_on;
  };

 private:
  Meeting meeting_;
  const at::Tensor input_;
  const void* address_ = nullptr;
  at::Tensor read_;
  std::thread thread_;
};

}  // namespace tessera::internal::testing

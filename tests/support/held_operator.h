#pragma once

#include <future>
#include <thread>

#include <ATen/core/Tensor.h>

namespace tessera::internal::testing {

/// An operator that another thread runs and that stops halfway: it has taken the address of its
/// input, and reads the input when end() is called.
class HeldOperator {
 public:
  /// `input`: contiguous, on the CPU. Returns when the operator has the address, or throws the
  /// operator's error.
  explicit HeldOperator(const at::Tensor& input);
  ~HeldOperator();
  HeldOperator(const HeldOperator&) = delete;
  HeldOperator& operator=(const HeldOperator&) = delete;

  /// Returns the data at that address now.
  at::Tensor look() const;

  /// Lets the operator continue and waits for it and its thread. Returns what it read.
  at::Tensor end();

  /// Signals between the operator and the test.
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

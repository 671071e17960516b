#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

namespace tessera {

class ProcessGroup;

/// A weighted mean of numbers, such as losses or hits, that ranks have computed for different
/// numbers of samples. Sums are kept without rounding, so the mean over all ranks has the same bits
/// however the numbers are distributed over the ranks. Not thread-safe.
class Mean {
 public:
  Mean();
  ~Mean();
  Mean(const Mean& other);
  Mean(Mean&& other) noexcept;
  Mean& operator=(const Mean& other);
  Mean& operator=(Mean&& other) noexcept;

  /// Local. Adds `value`, the mean over `weight` samples. With weight 0 it adds nothing, even if
  /// `value` is NaN. Throws c10::Error unless `weight` is finite and 0 or more.
  void add(double value, double weight = 1.0);
  /// The same for a tensor of one element. It reads the tensor, so on a GPU it waits for the
  /// device.
  void add(const at::Tensor& value, double weight = 1.0);

  /// Local. Returns the mean of the added values; NaN if the sum of the weights is 0.
  double value() const;
  /// Local. Returns the sum of the weights.
  double weight() const;

  /// Collective, blocking. Returns the mean of the values that all ranks of `group` have added; it
  /// is equal on all of them. Sends 1120 bytes per rank.
  [[nodiscard]] Mean over_ranks(ProcessGroup& group) const;

 private:
  struct Sums;
  std::unique_ptr<Sums> sums_;
};

}  // namespace tessera

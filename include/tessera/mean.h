#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

namespace tessera {

class ProcessGroup;

/// A weighted mean of numbers that ranks have computed for different numbers of samples: of losses,
/// of hits. Sums are kept without rounding, so the mean over all ranks has the same bits however
/// the same numbers are shared out among them. Not thread-safe.
class Mean {
 public:
  Mean();
  ~Mean();
  Mean(const Mean& other);
  Mean(Mean&& other) noexcept;
  Mean& operator=(const Mean& other);
  Mean& operator=(Mean&& other) noexcept;

  /// Local. Adds `value`, the mean over `weight` samples. With weight 0 it adds nothing, even for
  /// NaN. Throws c10::Error unless `weight` is finite and 0 or more.
  void add(double value, double weight = 1.0);
  /// The same for a tensor of one element, which it reads: on a GPU it waits for the device.
  void add(const at::Tensor& value, double weight = 1.0);

  /// Local. The mean of what was added; NaN if its weight is 0.
  double value() const;
  /// Local. The sum of the weights.
  double weight() const;

  /// Collective, blocking. The mean of what all ranks of `group` have added, equal on all of them.
  /// Sends 1120 bytes per rank.
  [[nodiscard]] Mean over_ranks(ProcessGroup& group) const;

 private:
  struct Sums;
  std::unique_ptr<Sums> sums_;
};

}  // namespace tessera

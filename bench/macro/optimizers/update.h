#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

namespace bench {

/// Repeats an update of one flat fp32 parameter with one gradient.
class Update {
 public:
  Update() = default;
  virtual ~Update() = default;
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;

  virtual void run() = 0;
  /// The average distance of values from their start.
  virtual double moved() const = 0;
};

/// Returns an update of `numel` values under one of the algorithms adamw, adam, sgd, lion, adagrad
/// and rmsprop. `by` says who updates:
/// - "tessera": this library's optimizer;
/// - "tessera8bit": this library's optimizer with states in 8 bits (only adamw and lion);
/// - "libtorch": LibTorch's optimizer; for Lion, which LibTorch lacks, the formula written with
///   LibTorch's operators;
/// - "memory": a loop that reads and writes as many arrays as the algorithm, with one addition per
///   written value.
/// Throws program::UsageError for other names.
std::unique_ptr<Update> make_update(const std::string& by, const std::string& algorithm,
                                    int64_t numel);

/// Throws program::UsageError unless make_update() accepts `by`.
void require_maker(const std::string& by);

}  // namespace bench

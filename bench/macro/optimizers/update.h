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

/// An update of `numel` values under one of the algorithms adamw, adam, sgd, lion, adagrad and
/// rmsprop. `by`: "tessera", this library's optimizer; "libtorch", LibTorch's own, or for Lion,
/// which LibTorch lacks, the formula in its operators; "tessera8bit", this library's with states in
/// 8 bits (only adamw and lion); "memory", which reads and writes as many arrays, with one addition
/// per written value. Throws program::UsageError for other names.
std::unique_ptr<Update> make_update(const std::string& by, const std::string& algorithm,
                                    int64_t numel);

/// Throws program::UsageError unless make_update() accepts `by`.
void require_maker(const std::string& by);

}  // namespace bench

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

namespace bench {

/// What repeats an update of one flat fp32 parameter with one gradient.
class Update {
 public:
  Update() = default;
  virtual ~Update() = default;
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;

  virtual void run() = 0;
  /// How far values have moved from where they began, on average.
  virtual double moved() const = 0;
};

/// Of `numel` values under the algorithm of this name: adamw, adam, sgd, lion, adagrad or rmsprop.
/// `by`: "tessera", this library's; "libtorch", LibTorch's own optimizer, or for Lion, which it
/// does not have, the formula in its operators; "tessera8bit", this library's with states in 8
/// bits, of adamw and lion; "memory", which reads and writes as many arrays and does one addition
/// for each value written. Throws program::UsageError for other names.
std::unique_ptr<Update> make_update(const std::string& by, const std::string& algorithm,
                                    int64_t numel);

/// Throws program::UsageError unless make_update() takes it.
void require_maker(const std::string& by);

}  // namespace bench

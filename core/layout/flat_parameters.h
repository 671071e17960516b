#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/parameter_table.h"
#include "tessera/core/layout/unit_plan.h"
#include "tessera/core/memory/memory_meter.h"

namespace tessera {

/// The trainable parameters of a model as views of one flat buffer per unit, and the watch over
/// them: every write outside the engine is noticed.
class FlatParameters {
 public:
  using Allocate = std::function<at::Tensor(int64_t numel, at::ScalarType dtype)>;

  /// Moves the trainable parameters of `table` into buffers made by `allocate`. References must
  /// outlive it. The parameters stay views of the buffers when it is destroyed.
  FlatParameters(const ParameterTable& table, const UnitPlan& plan, const Allocate& allocate,
                 MemoryMeter& meter);
  ~FlatParameters();
  FlatParameters(const FlatParameters&) = delete;
  FlatParameters& operator=(const FlatParameters&) = delete;

  /// Per unit: [unit numel], padding zero.
  const std::vector<at::Tensor>& values() const { return values_; }

  /// What is wrong with a parameter.
  enum class Violation : uint8_t {
    kNone,
    kMoved,     ///< no longer lives in its unit: re-assigned, converted or resized
    kWritten,   ///< its version counter moved, or its first elements changed without that
    kUnfrozen,  ///< was frozen when the model was parallelized and requires grad now
  };

  /// Whether parameter `index` still lives in its unit. Local, a few nanoseconds.
  bool lives_here(size_t index) const;

  /// The first parameter that was touched outside accept(), and how. Local; reads 64 elements of
  /// each parameter, because torch's SGD and others write through .data(), which has a version
  /// counter of its own.
  struct Finding {
    Violation violation = Violation::kNone;
    size_t parameter = 0;
  };
  Finding inspect() const;
  /// As inspect(), without writes to values: what modify_parameters() cannot mend.
  Finding inspect_places() const;

  /// Declares the present values right: remembers all version counters and first elements.
  void accept();

  /// Tells autograd that the values of parameter `index` changed, so that graphs made before fail
  /// instead of using them.
  void bump_version(size_t index);

 private:
  const ParameterTable& table_;
  const UnitPlan& plan_;
  MemoryMeter& meter_;
  std::vector<at::Tensor> values_;
  std::vector<int64_t> versions_;  // per table entry
  std::vector<uint64_t> samples_;  // per table entry: a hash of the first elements
};

/// What to tell the user: "<parameter> <what happened>; <remedy>".
std::string describe(FlatParameters::Violation violation, const std::string& parameter);

}  // namespace tessera

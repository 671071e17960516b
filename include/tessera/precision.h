#pragma once

#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace tessera {

/// The dtypes in which training computes, communicates and keeps its state. Each field is one of
/// Float, Double, BFloat16 and Half; unset fields follow from the model. Inputs are cast by the
/// user, buffers keep their dtype.
struct Precision {
  /// The dtype in which the model computes and parameters are gathered. Unset: each parameter's own
  /// dtype. If it is narrower than a parameter's own dtype, the parameter is converted in
  /// parallelize(), and its master keeps the value from before the conversion. Parameters of
  /// BatchNorm layers are not narrowed: their running statistics are fp32, and LibTorch refuses
  /// narrower parameters beside them.
  std::optional<c10::ScalarType> parameters = {};

  /// The dtype in which gradients are sent. Sums of 16-bit gradients are formed in fp32 and rounded
  /// once. Unset: the same as `parameters`.
  std::optional<c10::ScalarType> communication = {};

  /// The dtype in which reduced gradients are kept, and in which the gradients of several
  /// micro-steps are added up; at least as wide as `communication`. Unset: the same as `master`.
  std::optional<c10::ScalarType> reduce = {};

  /// The dtype in which the optimizer works: Float or Double, at least as wide as parameters.
  /// Unset: the parameter's own dtype, or Float if that has 16 bits; but never narrower than
  /// `parameters`.
  std::optional<c10::ScalarType> master = {};

  friend bool operator==(const Precision&, const Precision&) = default;
};

/// The dtypes of one unit.
struct UnitPrecision {
  c10::ScalarType parameters;
  c10::ScalarType communication;
  c10::ScalarType reduce;
  c10::ScalarType master;

  /// Returns true if the masters have another dtype than the parameters, and so have entries of
  /// their own in a StateDict.
  bool has_masters() const { return master != parameters; }
  friend bool operator==(const UnitPrecision&, const UnitPrecision&) = default;
};

/// Returns `precision` for parameters that the user made in `dtype`, with unset fields filled in.
UnitPrecision resolve(const Precision& precision, c10::ScalarType dtype);

/// Returns what is wrong with `precision` for parameters that the user made in `dtype`, one line
/// each: "precision.FIELD: got X; allowed Y; what to do".
std::vector<std::string> problems_of(const Precision& precision, c10::ScalarType dtype);

/// Returns one line for comparison across ranks.
std::string to_string(const Precision& precision);

}  // namespace tessera

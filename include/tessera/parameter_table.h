#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/precision.h"

namespace tessera {

/// A parameter under one of its registered names.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// One distinct parameter of a model.
struct Parameter {
  std::string name;  ///< its first name in registration order; used in messages and state
  std::vector<std::string> other_names;  ///< further names of the same tensor (tied parameters)
  at::Tensor tensor;                     ///< the user's own tensor, not a copy
  at::ScalarType dtype;                  ///< the tensor's when it was first put into a table
  bool is_trainable;  ///< its requires_grad at that time, or as with_trainable() says
  /// True if the parameter keeps its own dtype where Precision::parameters is narrower: in a
  /// BatchNorm, which computes with statistics in fp32.
  bool keeps_dtype = false;

  /// Returns `wanted` as it applies to this parameter.
  Precision precision(const Precision& wanted) const;
};

/// The distinct parameters of a model in registration order. Layout, optimizer and messages refer
/// to a parameter by its index here. Immutable.
class ParameterTable {
 public:
  /// `registered` is what Module::named_parameters() lists without removing duplicates: tied
  /// parameters (one tensor under several names) become one entry. Undefined tensors are left out.
  /// Throws c10::Error that lists every problem, each with the parameter's name: more than one
  /// device, a device other than CPU and CUDA, a layout other than strided, a dtype other than
  /// Float, Double, BFloat16 and Half, a tensor made in inference mode, storages of two entries
  /// that overlap (a tie made by aliasing; the remedy is to register one tensor twice), non-leaf
  /// tensors. `keeps_dtype` decides Parameter::keeps_dtype; null: false for all.
  explicit ParameterTable(std::vector<NamedTensor> registered,
                          const std::function<bool(const at::Tensor&)>& keeps_dtype = nullptr);

  /// Returns the same parameters, with parameter i trainable if is_trainable[i]. Does not read the
  /// tensors.
  ParameterTable with_trainable(const std::vector<bool>& is_trainable) const;

  size_t size() const { return parameters_.size(); }
  const Parameter& operator[](size_t index) const { return parameters_[index]; }
  std::vector<Parameter>::const_iterator begin() const { return parameters_.begin(); }
  std::vector<Parameter>::const_iterator end() const { return parameters_.end(); }

  /// Returns one line per parameter (index, all names, dtype, shape, strides, trainable) for
  /// comparison across ranks.
  std::vector<std::string> lines() const;

 private:
  std::vector<Parameter> parameters_;
};

}  // namespace tessera

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
  at::ScalarType dtype;                  ///< the tensor's dtype when it was first put into a table
  /// The tensor's requires_grad when it was first put into a table. In a table that
  /// with_trainable() has made: the value passed to it.
  bool is_trainable;
  /// True if the parameter keeps its own dtype even if Precision::parameters is narrower. It is
  /// true for parameters of a BatchNorm, because a BatchNorm computes with statistics in fp32.
  bool keeps_dtype = false;

  /// Returns `wanted`, but with the field `parameters` unset if keeps_dtype is true and
  /// wanted.parameters is narrower than `dtype`.
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
  /// tensors. `keeps_dtype` is called with each parameter's tensor and returns the parameter's
  /// Parameter::keeps_dtype; if the function is null, that is false for all parameters.
  explicit ParameterTable(std::vector<NamedTensor> registered,
                          const std::function<bool(const at::Tensor&)>& keeps_dtype = nullptr);

  /// Returns a table of the same parameters in which is_trainable[i] says whether parameter i is
  /// trainable. Does not read the tensors.
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

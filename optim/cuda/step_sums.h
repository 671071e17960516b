#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/device/device.h"
#include "tessera/core/layout/slice_map.h"
#include "tessera/optim/cuda/api.h"
#include "tessera/optim/cuda/device_lists.h"
#include "tessera/optim/cuda/step_words.h"
#include "tessera/optim/cuda/uploads.h"
#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"

namespace tessera::internal::cuda {

/// Returns why the kernels cannot train a plan, one line per problem, such as "[optim] unit
/// '<name>' master: got X, expected Y; <remedy>"; "" if they can. Masters must be Float;
/// parameters, communication and reduced gradients must be Float, BFloat16 or Half; the world may
/// have at most kMaxRanks ranks. Local, equal on all ranks.
std::string problem_of(const UnitPlan& plan, int world_size);

/// Collects on the device the numbers that the ranks add up before a step: the exact sum of the
/// squares of the mean gradient, refusals, agreement, elements that are not finite and parameters
/// that are used, in the layout of step_words.h. Every call is local, is queued on the device's
/// current stream of the calling thread and returns without waiting for the device; the caller
/// orders streams. Arguments must stay alive until the queued work has run; LibTorch's memory on a
/// GPU does. Used by one thread at a time.
class StepSums {
 public:
  /// Uploads two lists of pieces for each trainable unit: those of the unit, and those of this
  /// rank's atom of it. A piece takes 16 bytes and has up to 4096 elements. Throws c10::Error with
  /// the text of problem_of() if there is a problem. All words are 0, as after clear().
  StepSums(const ParameterTable& table, const UnitPlan& plan, const SliceMap& slices,
           std::shared_ptr<const Api> api, std::shared_ptr<Device> device);

  /// Begins a step: sets all words to 0.
  void clear();
  /// Counts the NaN or infinite elements in the gradients that this rank produced for trainable
  /// `unit`. `gradient_buffer`: [unit numel] of Float, BFloat16 or Half. One pass. The counts of
  /// several calls in a step are added.
  void count_non_finite(size_t unit, const at::Tensor& gradient_buffer);
  /// Adds the squares of this rank's atom of trainable `unit`. `kept`: 1-d Float, BFloat16 or Half;
  /// the mean gradient from element `begin` of the unit on, which must contain all of the atom. One
  /// pass.
  void add_squares(size_t unit, const at::Tensor& kept, int64_t begin);
  /// Writes this rank's own words. used_here[i] != 0: this rank used parameter i of the table.
  /// `hash`: a hash of all that ranks must agree on. `refuses`: true if this rank refuses the step,
  /// which then no rank applies. Call this once per step, after the other calls and before the SUM
  /// all_reduce of words() in place.
  void write_own_words(std::span<const uint8_t> used_here, uint64_t hash, bool refuses);

  /// Returns [step_words(table size)] int64 on the device, always the same tensor.
  const at::Tensor& words() const { return words_; }
  /// Returns the part of words() that GpuOptimizer::advance() reads, on the device.
  const int64_t* used() const;
  /// Returns how many bytes of device memory this object takes.
  int64_t bytes() const;

 private:
  int64_t* at(int64_t word) const;

  const std::shared_ptr<const Api> api_;
  const std::shared_ptr<Device> device_;
  const int64_t parameters_;
  std::vector<int64_t> unit_numels_;
  std::vector<Range> atoms_;  // per unit: the range of its elements in this rank's atom
  at::Tensor words_;
  DeviceLists<Piece> unit_pieces_;
  DeviceLists<Piece> atom_pieces_;  // per unit; Piece::begin counts from the atom's start
  Uploads uploads_;
};

}  // namespace tessera::internal::cuda

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/core/layout/slice_map.h"
#include "tessera/core/reduce/reducer.h"
#include "tessera/core/step/grad_norm.h"
#include "tessera/tests/support/recording_group.h"

namespace tessera::internal::testing {

/// Every p | g | o of a world.
inline std::vector<Degrees> all_degrees(int world) {
  std::vector<Degrees> configurations;
  for (int o = 1; o <= world; ++o) {
    for (int g = 1; g <= o; ++g) {
      for (int p = 1; p <= g; ++p) {
        if (g % p == 0 && o % g == 0 && world % o == 0) configurations.push_back({p, g, o});
      }
    }
  }
  return configurations;
}

/// Whether this configuration forms every sum over all ranks at once, in rank order.
inline bool sums_in_rank_order(const Degrees& configuration) {
  return configuration.gradients == 1 || configuration.gradients == configuration.optimizer;
}

/// One rank's reducer and all it needs: four trainable parameters of odd sizes in a plain, a root
/// and another plain unit, and a frozen unit.
struct ReductionRig {
  static constexpr size_t kParameters = 4;  // with gradients; the fifth is frozen

  ReductionRig(std::shared_ptr<ProcessGroup> world, Degrees degrees, Precision precision = {},
               at::ScalarType dtype = at::kFloat,
               const Reducer::Setting& setting = {.on_release = BufferPool::OnRelease::kPoison})
      : group(std::make_shared<RecordingGroup>(std::move(world), std::make_shared<Recording>())),
        table({{"a", leaf({7, 11}, dtype)},
               {"b", leaf({}, dtype)},
               {"root", leaf({9, 131}, dtype)},
               {"c", leaf({300}, dtype)},
               {"frozen", leaf({500}, dtype).set_requires_grad(false)}}),
        plan(table,
             {{"ab", {0, 1}},
              {"root", {2}, UnitKind::kRoot},
              {"c", {3}},
              {"frozen", {4}, UnitKind::kFrozen}},
             group->size(), precision),
        slices(degrees, group->size(), group->rank()),
        reducer(*group, table, plan, slices, setting, meter, history, /*trace=*/nullptr) {
    group->recording()->clear();
  }

  static at::Tensor leaf(at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::zeros(sizes, dtype).set_requires_grad(true);
  }

  const at::Tensor& parameter(size_t index) const { return table[index].tensor; }

  /// One micro-step in which parameter i receives gradients[i] (if defined).
  void micro_step(const std::vector<at::Tensor>& gradients,
                  Reducer::Mode mode = Reducer::Mode::kReduce) {
    reducer.begin_micro_step(mode);
    for (size_t i = gradients.size(); i-- > 0;) {
      if (gradients[i].defined()) reducer.receive(i, gradients[i]);
    }
    reducer.end_micro_step();
  }

  /// Puts `values` of all trainable parameters (in their shapes) into `unit`'s flat buffer; padding
  /// is zero.
  at::Tensor flat(size_t unit, const std::vector<at::Tensor>& values) const {
    const PlannedUnit& planned = plan[unit];
    at::Tensor buffer = at::zeros({planned.layout.numel()}, values[0].scalar_type());
    for (size_t position = 0; position < planned.parameters.size(); ++position) {
      const Range range = planned.layout.parameter_range(position);
      buffer.narrow(0, range.begin, range.numel)
          .copy_(values[planned.parameters[position]].flatten());
    }
    return buffer;
  }
  /// The part of flat() that this rank keeps.
  at::Tensor kept(size_t unit, const std::vector<at::Tensor>& values) const {
    const Range range = slices.optimizer(plan[unit].layout);
    return flat(unit, values).narrow(0, range.begin, range.numel);
  }

  /// The squares of all elements of `values`, as all ranks together must compute them.
  ExactSum squares_of(const std::vector<at::Tensor>& values) const {
    ExactSum sum;
    for (size_t unit = 0; unit < plan.trainable_size(); ++unit) {
      const FlatLayout& layout = plan[unit].layout;
      for (const Segment& segment : layout.segments({0, layout.numel()})) {
        add_squares(flat(unit, values), segment, sum);
      }
    }
    return sum;
  }
  /// The sum of all ranks' squares. Collective.
  ExactSum squares_of_all_ranks() {
    HostAllGather all_gather(*group, ExactSum::kWords);
    ExactSum mine;
    for (size_t unit = 0; unit < plan.trainable_size(); ++unit) mine.merge(reducer.squares(unit));
    mine.store(all_gather.mine().subspan<0, ExactSum::kWords>());
    all_gather.exchange("squares");
    ExactSum sum;
    for (int rank = 0; rank < group->size(); ++rank) {
      sum.merge(ExactSum::load(all_gather.of(rank).subspan<0, ExactSum::kWords>()));
    }
    return sum;
  }

  std::shared_ptr<RecordingGroup> group;
  MemoryMeter meter;
  RollingHash history;
  ParameterTable table;
  UnitPlan plan;
  SliceMap slices;
  Reducer reducer;
};

/// Gradients of `rank` for all trainable parameters in `dtype`: normally distributed with very
/// different magnitudes, the same whichever rank calls.
inline std::vector<at::Tensor> random_gradients(const ReductionRig& rig, int rank, int micro_step,
                                                at::ScalarType dtype = at::kFloat) {
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 * rank + micro_step));
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < ReductionRig::kParameters; ++i) {
    const at::Tensor values = at::randn(rig.parameter(i).sizes(), generator, at::kFloat);
    const at::Tensor sizes = at::randn(rig.parameter(i).sizes(), generator, at::kFloat);
    gradients.push_back((values * sizes.mul(4).exp2()).to(dtype));
  }
  return gradients;
}

/// As random_gradients(), with small multiples of the number of ranks: sums and means are exact in
/// any order.
inline std::vector<at::Tensor> exact_gradients(const ReductionRig& rig, int rank, int micro_step) {
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 * rank + micro_step));
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < ReductionRig::kParameters; ++i) {
    const at::Tensor values = at::randint(-50, 50, rig.parameter(i).sizes(), generator, at::kFloat);
    gradients.push_back(values * rig.group->size());
  }
  return gradients;
}

using GradientsOf = std::vector<at::Tensor> (*)(const ReductionRig&, int rank, int micro_step);

/// The means that configurations promise: per micro-step the sum in rank order, divided once;
/// micro-steps added one after the other.
inline std::vector<at::Tensor> rank_order_means(const ReductionRig& rig, int micro_steps,
                                                const GradientsOf& gradients_of) {
  std::vector<at::Tensor> means;
  for (int micro_step = 0; micro_step < micro_steps; ++micro_step) {
    std::vector<at::Tensor> sums;
    for (int rank = 0; rank < rig.group->size(); ++rank) {
      const std::vector<at::Tensor> gradients = gradients_of(rig, rank, micro_step);
      for (size_t i = 0; i < gradients.size(); ++i) {
        if (rank == 0) {
          sums.push_back(gradients[i].clone());
        } else {
          sums[i].add_(gradients[i]);
        }
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i].div_(rig.group->size());
      if (micro_step == 0) {
        means.push_back(sums[i]);
      } else {
        means[i].add_(sums[i]);
      }
    }
  }
  return means;
}

}  // namespace tessera::internal::testing

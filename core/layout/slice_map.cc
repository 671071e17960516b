#include "tessera/core/layout/slice_map.h"

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

namespace tessera::internal {

std::string problem_of(const Degrees& degrees, int world_size) {
  const auto divides = [](int small, int large) { return small >= 1 && large % small == 0; };
  if (divides(degrees.parameters, degrees.gradients) &&
      divides(degrees.gradients, degrees.optimizer) && divides(degrees.optimizer, world_size)) {
    return "";
  }
  return absl::StrCat("got ", to_string(degrees), " on a world of ", world_size,
                      ", expected parameters, gradients, optimizer, world where each divides the "
                      "next; choose others or another number of ranks");
}

SliceMap::SliceMap(Degrees degrees, int world_size, int rank)
    : degrees_(degrees), world_size_(world_size), rank_(rank) {
  const std::string problem = problem_of(degrees, world_size);
  TORCH_CHECK(problem.empty(), "[zero] degrees: ", problem);
  TORCH_INTERNAL_ASSERT(rank >= 0 && rank < world_size);
}

int SliceMap::weight(Axis axis) const {
  switch (axis) {
    case Axis::kParameters:
      return 1;
    case Axis::kGradients:
      return degrees_.parameters;
    case Axis::kOptimizer:
      return degrees_.gradients;
    case Axis::kReplicas:
      return degrees_.optimizer;
  }
  TORCH_INTERNAL_ASSERT(false);
}

int SliceMap::extent(Axis axis) const {
  switch (axis) {
    case Axis::kParameters:
      return degrees_.parameters;
    case Axis::kGradients:
      return degrees_.gradients / degrees_.parameters;
    case Axis::kOptimizer:
      return degrees_.optimizer / degrees_.gradients;
    case Axis::kReplicas:
      return world_size_ / degrees_.optimizer;
  }
  TORCH_INTERNAL_ASSERT(false);
}

int SliceMap::coordinate(Axis axis) const { return rank_ / weight(axis) % extent(axis); }

int SliceMap::parameter_slice() const { return coordinate(Axis::kParameters); }

int SliceMap::gradient_slice() const {
  return parameter_slice() * extent(Axis::kGradients) + coordinate(Axis::kGradients);
}

int SliceMap::optimizer_slice() const {
  return gradient_slice() * extent(Axis::kOptimizer) + coordinate(Axis::kOptimizer);
}

int SliceMap::atom() const {
  return optimizer_slice() * extent(Axis::kReplicas) + coordinate(Axis::kReplicas);
}

Range SliceMap::parameters(const FlatLayout& layout) const {
  return layout.part(parameter_slice(), degrees_.parameters);
}

Range SliceMap::gradients(const FlatLayout& layout) const {
  return layout.part(gradient_slice(), degrees_.gradients);
}

Range SliceMap::optimizer(const FlatLayout& layout) const {
  return layout.part(optimizer_slice(), degrees_.optimizer);
}

Range SliceMap::atom(const FlatLayout& layout) const { return layout.part(atom(), world_size_); }

std::vector<int> SliceMap::peers(const std::vector<Axis>& axes) const {
  const std::vector<int> all = colors(axes);
  std::vector<int> peers;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (all[rank] == all[rank_]) peers.push_back(rank);
  }
  return peers;
}

std::vector<int> SliceMap::colors(const std::vector<Axis>& axes) const {
  std::vector<int> colors;
  for (int rank = 0; rank < world_size_; ++rank) {
    int color = rank;
    for (const Axis axis : axes) color -= rank / weight(axis) % extent(axis) * weight(axis);
    colors.push_back(color);
  }
  return colors;
}

}  // namespace tessera::internal

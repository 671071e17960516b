// Compares every collective, dtype, operation, world size, tensor size and kind of memory with a
// reference written here, bit for bit.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "tessera/core/memory/copy_kernels.h"
#include "tessera/process_group.h"
#include "tessera/tests/core/comm/groups/rank_tensors.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using testing::have_same_bits;
using testing::kMemories;
using testing::make;
using testing::make_copy;
using testing::Memory;
using testing::run_ranks;

// A sanitizer makes the reference slow; the largest size still takes several chunks where ranks
// stage.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int64_t kLargest = 70001;
constexpr int64_t kSizes[] = {0, 7, 64, kLargest};
#else
constexpr int64_t kLargest = 100003;
constexpr int64_t kSizes[] = {0, 1, 7, 64, 1000, kLargest};
#endif
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                      at::kLong,  at::kInt,    at::kByte};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax};

/// What rank `rank` contributes; every rank can compute it.
at::Tensor input_of(int rank, int64_t numel, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(1000 + rank);
  if (at::isFloatingType(dtype)) {
    return (at::randn({numel}, generator, at::kDouble) * 3).to(dtype);
  }
  const int64_t high = dtype == at::kByte ? 256 : 2000000000;
  return at::randint(dtype == at::kByte ? 0 : -high, high, {numel}, generator, at::kLong).to(dtype);
}

std::vector<at::Tensor> inputs_of(int world_size, int64_t numel, at::ScalarType dtype) {
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < world_size; ++rank) inputs.push_back(input_of(rank, numel, dtype));
  return inputs;
}

template <typename T>
struct Wide {
  using type = T;
};
template <>
struct Wide<at::BFloat16> {
  using type = float;
};
template <>
struct Wide<at::Half> {
  using type = float;
};

template <typename T>
bool is_nan(T value) {
  return value != value;
}

/// Combines element after element, rank after rank, and shares no code with the kernels under test.
template <typename T>
void combine(const std::vector<at::Tensor>& inputs, ReduceOp op, at::Tensor& result) {
  using W = typename Wide<T>::type;
  T* out = result.mutable_data_ptr<T>();
  std::vector<const T*> data;
  for (const auto& input : inputs) data.push_back(input.const_data_ptr<T>());
  for (int64_t i = 0; i < result.numel(); ++i) {
    W value = static_cast<W>(data[0][i]);
    for (size_t rank = 1; rank < data.size(); ++rank) {
      const W other = static_cast<W>(data[rank][i]);
      switch (op) {
        case ReduceOp::kSum:
        case ReduceOp::kAvg:
          if constexpr (std::is_integral_v<W>) {
            using U = std::make_unsigned_t<W>;
            value = static_cast<W>(static_cast<U>(value) + static_cast<U>(other));
          } else {
            value = value + other;
          }
          break;
        case ReduceOp::kMin:
          if (!is_nan(value) && (is_nan(other) || other < value)) value = other;
          break;
        case ReduceOp::kMax:
          if (!is_nan(value) && (is_nan(other) || other > value)) value = other;
          break;
        default:  // complete_group_test.cc
          break;
      }
    }
    if constexpr (std::is_floating_point_v<W>) {
      if (op == ReduceOp::kAvg) value = value / static_cast<W>(data.size());
    }
    out[i] = static_cast<T>(value);
  }
}

at::Tensor reference(const std::vector<at::Tensor>& inputs, ReduceOp op) {
  at::Tensor result = at::empty_like(inputs[0]);
  switch (inputs[0].scalar_type()) {
    case at::kFloat:
      combine<float>(inputs, op, result);
      break;
    case at::kDouble:
      combine<double>(inputs, op, result);
      break;
    case at::kBFloat16:
      combine<at::BFloat16>(inputs, op, result);
      break;
    case at::kHalf:
      combine<at::Half>(inputs, op, result);
      break;
    case at::kLong:
      combine<int64_t>(inputs, op, result);
      break;
    case at::kInt:
      combine<int32_t>(inputs, op, result);
      break;
    default:
      combine<uint8_t>(inputs, op, result);
  }
  return result;
}

std::vector<at::Tensor> cut(const std::vector<at::Tensor>& tensors, int64_t begin, int64_t numel) {
  std::vector<at::Tensor> parts;
  for (const auto& tensor : tensors) parts.push_back(tensor.narrow(0, begin, numel).clone());
  return parts;
}

/// The ranks' inputs of a collective and its expected result. Made once for all ranks, which are
/// threads and read it together.
struct Copy {
  int64_t numel;  // of each rank's part
  std::vector<at::Tensor> parts;
  at::Tensor wanted;
};
struct Reduction {
  ReduceOp op;
  int64_t numel;                   // of each rank's slice
  std::vector<at::Tensor> inputs;  // world size times as long
  at::Tensor wanted;
};

Copy copy_of(const std::vector<at::Tensor>& inputs, int64_t numel) {
  auto parts = cut(inputs, 0, numel);
  const at::Tensor wanted = at::cat(parts);
  return {numel, std::move(parts), wanted};
}

Reduction reduction_of(const std::vector<at::Tensor>& inputs, int64_t numel, ReduceOp op) {
  auto whole = cut(inputs, 0, numel * static_cast<int64_t>(inputs.size()));
  const at::Tensor wanted = reference(whole, op);
  return {op, numel, std::move(whole), wanted};
}

void check_reductions(ProcessGroup& group, Memory memory, const Reduction& reduction) {
  const int rank = group.rank();
  const auto& [op, numel, inputs, wanted] = reduction;
  const std::string what =
      std::to_string(numel) + " " + std::string(c10::toString(inputs[0].scalar_type())) + " " +
      std::string(to_string(op)) + " memory " + std::to_string(static_cast<int>(memory));

  const at::Tensor all = make_copy(group, memory, inputs[rank]);
  group.all_reduce(all, op, "all")->wait();
  ASSERT_TRUE(have_same_bits(all, wanted)) << "all_reduce of " << what;

  for (const int root : {0, group.size() - 1}) {
    const at::Tensor part = make_copy(group, memory, inputs[rank]);
    group.reduce(part, op, root, "part")->wait();
    ASSERT_TRUE(have_same_bits(part, rank == root ? wanted : inputs[rank]))
        << "reduce to " << root << " of " << what;
  }

  const at::Tensor own = wanted.narrow(0, rank * numel, numel).contiguous();
  const at::Tensor input = make_copy(group, memory, inputs[rank]);
  const at::Tensor output = make(group, Memory::kPrivate, numel, input.scalar_type());
  group.reduce_scatter(output, input, op, "scatter")->wait();
  ASSERT_TRUE(have_same_bits(output, own)) << "reduce_scatter of " << what;
  ASSERT_TRUE(have_same_bits(input, inputs[rank])) << "reduce_scatter changed its input: " << what;

  // In place: the other slices do not change.
  at::Tensor expected = input.clone();
  expected.narrow(0, rank * numel, numel).copy_(own);
  group.reduce_scatter(input.narrow(0, rank * numel, numel), input, op, "in place")->wait();
  ASSERT_TRUE(have_same_bits(input, expected)) << "reduce_scatter in place of " << what;
}

void check_copies(ProcessGroup& group, Memory memory, const Copy& copy) {
  const int rank = group.rank();
  const int size = group.size();
  const auto& [numel, parts, wanted] = copy;
  const at::Tensor input = make_copy(group, memory, parts[rank]);
  const at::Tensor output = make(group, memory, numel * size, input.scalar_type());
  output.zero_();
  group.all_gather(output, input, "gather")->wait();
  ASSERT_TRUE(have_same_bits(output, wanted)) << "all_gather of " << numel;

  output.zero_();
  output.narrow(0, rank * numel, numel).copy_(parts[rank]);
  group.all_gather(output, output.narrow(0, rank * numel, numel), "in place")->wait();
  ASSERT_TRUE(have_same_bits(output, wanted)) << "all_gather in place of " << numel;

  for (int root = 0; root < size; ++root) {
    const at::Tensor tensor = make_copy(group, memory, parts[rank]);
    group.broadcast(tensor, root, "root")->wait();
    ASSERT_TRUE(have_same_bits(tensor, parts[root]))
        << "broadcast of " << numel << " from " << root;
  }
}

class Collectives : public ::testing::TestWithParam<int> {};

TEST_P(Collectives, EqualTheReferenceToTheBit) {
  const int size = GetParam();
  std::vector<Copy> copies;
  std::vector<Reduction> reductions;
  for (const at::ScalarType dtype : kDtypes) {
    const std::vector<at::Tensor> inputs = inputs_of(size, kLargest * size, dtype);
    for (const int64_t numel : kSizes) {
      copies.push_back(copy_of(inputs, numel));
      for (const ReduceOp op : kOps) {
        if (op == ReduceOp::kAvg && !at::isFloatingType(dtype)) continue;
        reductions.push_back(reduction_of(inputs, numel, op));
      }
    }
  }
  run_ranks(size, [&](std::shared_ptr<ProcessGroup> group) {
    for (const Memory memory : kMemories) {
      for (const Copy& copy : copies) check_copies(*group, memory, copy);
      for (const Reduction& one : reductions) check_reductions(*group, memory, one);
    }
  });
}

// Rank threads of a world of one get loopback; shm must do the same.
TEST(Collectives, ShmOfOneEqualsLoopback) {
  for (const char* backend : {"loopback", "shm"}) {
    run_ranks(1,
              [backend](std::shared_ptr<ProcessGroup> group) {
                EXPECT_EQ(group->backend(), backend);
                const auto inputs = inputs_of(1, 1000, at::kBFloat16);
                for (const Memory memory : kMemories) {
                  check_copies(*group, memory, copy_of(inputs, 1000));
                  for (const ReduceOp op : kOps) {
                    check_reductions(*group, memory, reduction_of(inputs, 1000, op));
                  }
                }
              },
              {.backend = backend});
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Collectives, ::testing::Values(1, 2, 3, 4, 5));

// Large enough that all_gather uses non-temporal stores.
TEST(Collectives, GathersBeyondTheCacheEqualTheReferenceToTheBit) {
  constexpr int kRanks = 3;
  int64_t copied_bytes = 1;
  while (!streaming_pays(copied_bytes, kRanks)) copied_bytes *= 2;
  const int64_t numel = copied_bytes / static_cast<int64_t>(sizeof(float)) / (kRanks - 1) + 7;
  const Copy copy = copy_of(inputs_of(kRanks, numel, at::kFloat), numel);
  run_ranks(kRanks, [&](std::shared_ptr<ProcessGroup> group) {
    for (const Memory memory : kMemories) check_copies(*group, memory, copy);
  });
}

TEST(Collectives, MinAndMaxKeepNaN) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> group) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
        for (int culprit = 0; culprit < 3; ++culprit) {
          at::Tensor tensor = at::full({200}, group->rank(), dtype);
          if (group->rank() == culprit) {
            tensor[culprit * 70] = std::numeric_limits<double>::quiet_NaN();
          }
          group->all_reduce(tensor, op)->wait();
          EXPECT_TRUE(std::isnan(tensor[culprit * 70].item<double>())) << "rank " << culprit;
          EXPECT_EQ(at::isnan(tensor).sum().item<int64_t>(), 1);
        }
      }
    }
  });
}

// The reference must notice a missing rank and the order of the sum; otherwise the tests above
// prove little.
TEST(Collectives, NegativeControlsOfTheReference) {
  const auto inputs = inputs_of(3, 1000, at::kFloat);
  const at::Tensor right = reference(inputs, ReduceOp::kSum);
  EXPECT_FALSE(have_same_bits(right, reference({inputs[0], inputs[1]}, ReduceOp::kSum)));
  EXPECT_FALSE(have_same_bits(right, reference({inputs[2], inputs[1], inputs[0]}, ReduceOp::kSum)));
  EXPECT_FALSE(have_same_bits(reference(inputs, ReduceOp::kAvg), right * (1.0f / 3.0f)));

  // A rank that contributes zeros, as one that was skipped would.
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
    at::Tensor tensor = inputs[group->rank()].clone();
    if (group->rank() == 2) tensor.zero_();
    group->all_reduce(tensor, ReduceOp::kSum)->wait();
    EXPECT_FALSE(have_same_bits(tensor, right));
  });

  // A root that is left out, and a wrong root.
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
    at::Tensor tensor = inputs[group->rank()].clone();
    if (group->rank() == 1) tensor.zero_();
    group->reduce(tensor, ReduceOp::kSum, 1)->wait();
    EXPECT_FALSE(have_same_bits(tensor, right));
    tensor.copy_(inputs[group->rank()]);
    group->reduce(tensor, ReduceOp::kSum, 2)->wait();
    EXPECT_EQ(have_same_bits(tensor, right), group->rank() == 2);
  });
}

// 16-bit sums are rounded once: in bf16, 256 plus many ones would stay 256.
TEST(Collectives, SixteenBitSumsAreAccumulatedInSingle) {
  run_ranks(5, [](std::shared_ptr<ProcessGroup> group) {
    at::Tensor tensor = at::full({65}, group->rank() == 0 ? 256.0 : 1.0, at::kBFloat16);
    group->all_reduce(tensor, ReduceOp::kSum)->wait();
    EXPECT_EQ(tensor[64].item<float>(), 260.0f);
  });
}

TEST(Collectives, ChunkedBuffersOfUnequalKindsMixAcrossManyChunks) {
  constexpr int64_t kNumel = 300007;  // more than four staging areas of fp32
  const auto inputs = inputs_of(3, kNumel * 3, at::kFloat);
  const Reduction reduction = reduction_of(inputs, kNumel, ReduceOp::kAvg);
  const Copy copy = copy_of(inputs, kNumel);
  run_ranks(3,
            [&](std::shared_ptr<ProcessGroup> group) {
              for (const Memory memory : kMemories) {
                check_reductions(*group, memory, reduction);
                check_copies(*group, memory, copy);
              }
            },
            {.lane = ProcessGroupOptions::Lane::kThread});
}

}  // namespace
}  // namespace tessera::internal

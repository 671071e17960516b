#include "tessera/distributed_sampler.h"

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/process_group.h"
#include "tessera/tests/data/sampler_ranks.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal::testing {
namespace {

using data::DistributedSampler;
using data::Remainder;
using data::SamplerOptions;
using data::SamplerState;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr SamplerOptions kSequential = {.shuffle = false};

Samples pass_of(DistributedSampler& sampler, size_t batch_size) {
  Samples all;
  while (const std::optional<Samples> batch = sampler.next(batch_size)) {
    EXPECT_GE(batch->size(), 1u);
    EXPECT_LE(batch->size(), batch_size);
    all.insert(all.end(), batch->begin(), batch->end());
  }
  EXPECT_FALSE(sampler.next(batch_size).has_value()) << "loaders ask again";
  return all;
}

/// The algorithm of torch/utils/data/distributed.py.
struct PyTorch {
  PyTorch(const Samples& order, int64_t replicas, bool drop_last) : indices(order) {
    const auto size = static_cast<double>(order.size());
    const auto world = static_cast<double>(replicas);
    if (drop_last && order.size() % static_cast<size_t>(replicas) != 0) {
      num_samples = static_cast<int64_t>(std::ceil((size - world) / world));
    } else {
      num_samples = static_cast<int64_t>(std::ceil(size / world));
    }
    total_size = num_samples * replicas;
    if (!drop_last) {
      const size_t padding = static_cast<size_t>(total_size) - indices.size();
      for (size_t i = 0; i < padding; ++i) indices.push_back(order[i % order.size()]);
    } else {
      indices.resize(static_cast<size_t>(total_size));
    }
  }
  Samples of_rank(int64_t rank, int64_t replicas) const {
    Samples taken;
    for (int64_t i = rank; i < total_size; i += replicas) {
      taken.push_back(indices[static_cast<size_t>(i)]);
    }
    return taken;
  }

  Samples indices;
  int64_t num_samples;
  int64_t total_size;
};

TEST(DistributedSampler, SharesOutAsPyTorchDoes) {
  for (int64_t size = 1; size <= 50; ++size) {
    for (const bool shuffle : {false, true}) {
      const Samples order = order_of(size, 2, {.shuffle = shuffle, .seed = 5});
      for (int world = 1; world <= 5; ++world) {
        for (const bool drop_last : {false, true}) {
          const PyTorch expected(order, world, drop_last);
          for (int rank = 0; rank < world; ++rank) {
            DistributedSampler sampler(
                size, world, rank,
                {.shuffle = shuffle,
                 .seed = 5,
                 .remainder = drop_last ? Remainder::kDrop : Remainder::kPad});
            sampler.set_epoch(2);
            EXPECT_EQ(sampler.num_samples(), expected.num_samples);
            EXPECT_EQ(sampler.total_size(), expected.total_size);
            ASSERT_EQ(sampler.indices(), expected.of_rank(rank, world))
                << size << " samples, world " << world << ", rank " << rank;
            ASSERT_EQ(pass_of(sampler, 3), expected.of_rank(rank, world));
          }
        }
      }
    }
  }
}

TEST(DistributedSampler, EvaluationHasEverySampleOnce) {
  for (const int64_t size : {1, 2, 3, 7, 49, 50}) {
    for (int world = 1; world <= 5; ++world) {
      Samples all;
      for (int rank = 0; rank < world; ++rank) {
        DistributedSampler sampler(size, world, rank,
                                   {.shuffle = false, .remainder = Remainder::kUneven});
        const Samples own = pass_of(sampler, 4);
        EXPECT_EQ(static_cast<int64_t>(own.size()), sampler.num_samples());
        EXPECT_EQ(sampler.total_size(), size);
        all.insert(all.end(), own.begin(), own.end());
        sampler.reset();
        EXPECT_EQ(pass_of(sampler, 2), own) << "a second pass has the same";
      }
      Samples expected(static_cast<size_t>(size));
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(sorted(all), expected) << size << " samples, world " << world;
    }
  }
}

TEST(DistributedSampler, OrdersDifferByEpochAndSeed) {
  const Samples order = order_of(50, 0, {.seed = 1});
  EXPECT_EQ(order_of(50, 0, {.seed = 1}), order);
  EXPECT_NE(order_of(50, 1, {.seed = 1}), order);
  EXPECT_NE(order_of(50, 0, {.seed = 2}), order);
  EXPECT_EQ(order_of(50, 1, kSequential), order_of(50, 0, kSequential));
}

TEST(DistributedSampler, CopiesShareOneState) {
  DistributedSampler sampler(10, 1, 0, kSequential);
  DistributedSampler copy = sampler;
  DistributedSampler moved = std::move(sampler);
  EXPECT_THAT(*copy.next(3), ElementsAre(0, 1, 2));
  EXPECT_THAT(*moved.next(3), ElementsAre(3, 4, 5));
  sampler.advance();  // NOLINT(bugprone-use-after-move): moving copies
  EXPECT_EQ(copy.state().cursor, 3);
  sampler.set_epoch(4);
  EXPECT_EQ(moved.epoch(), 4);
}

TEST(DistributedSampler, APassHasWhatIsNotConsumed) {
  DistributedSampler sampler(10, 2, 1, kSequential);
  EXPECT_THAT(*sampler.next(2), ElementsAre(1, 3));
  EXPECT_THAT(*sampler.next(2), ElementsAre(5, 7));
  sampler.advance();
  EXPECT_EQ(sampler.state().cursor, 4);
  EXPECT_THAT(sampler.indices(), ElementsAre(5, 7, 9));
  sampler.reset();  // samples that were only fetched are repeated
  EXPECT_THAT(*sampler.next(2), ElementsAre(5, 7));
  EXPECT_THAT(*sampler.next(2), ElementsAre(9));
  sampler.advance(2);
  EXPECT_EQ(sampler.state().cursor, 10);
}

TEST(DistributedSampler, GoesToTheNextEpochWhenToldTo) {
  DistributedSampler sampler(5, 1, 0, kSequential);
  sampler.set_epoch(0);
  sampler.reset();
  EXPECT_THAT(*sampler.next(5), ElementsAre(0, 1, 2, 3, 4));
  sampler.advance();
  EXPECT_THAT(message_of([&] { sampler.reset(); }),
              HasSubstr("[sampler] reset: epoch 0 is finished, expected another epoch before the "
                        "next pass; call set_epoch(1)"));
  sampler.set_epoch(0);  // a loop that resumes after the last step of an epoch
  sampler.reset();
  EXPECT_FALSE(sampler.next(1).has_value());
  sampler.set_epoch(1);
  EXPECT_THAT(*sampler.next(2), ElementsAre(0, 1)) << "without reset()";
  sampler.set_epoch(1);
  EXPECT_THAT(*sampler.next(2), ElementsAre(2, 3)) << "the same epoch goes on";
}

TEST(DistributedSampler, LoopsOverIndicesCountSamples) {
  DistributedSampler sampler(11, 3, 0, kSequential);
  EXPECT_THAT(sampler.indices(), ElementsAre(0, 3, 6, 9));
  sampler.advance_samples(3);
  EXPECT_EQ(sampler.state().cursor, 9);
  EXPECT_THAT(sampler.indices(), ElementsAre(9));
  EXPECT_THAT(*sampler.next(5), ElementsAre(9));
  EXPECT_THAT(message_of([&] { sampler.advance_samples(1); }), HasSubstr("call advance()"));
  sampler.advance();
  EXPECT_EQ(sampler.state().cursor, 11);
  EXPECT_THAT(message_of([&] { sampler.advance_samples(1); }),
              HasSubstr("expected at most 0, which are left in this epoch"));
}

TEST(DistributedSampler, TakesANewSizeAtTheBeginningOfAnEpoch) {
  DistributedSampler sampler(4, 1, 0, {.seed = 9});
  sampler.reset(6);
  EXPECT_EQ(sampler.size(), 6);
  EXPECT_EQ(pass_of(sampler, 6), order_of(6, 0, {.seed = 9}));
  sampler.reset(6);
  (void)sampler.next(2);
  sampler.advance();
  EXPECT_THAT(message_of([&] { sampler.reset(7); }),
              HasSubstr("got a new size 7 when 2 of 6 samples of epoch 0 are consumed"));
  EXPECT_THAT(message_of([&] { sampler.reset(0); }), HasSubstr("[sampler] size: got 0"));
  sampler.set_epoch(1);
  sampler.reset(7);
  EXPECT_EQ(sampler.num_samples(), 7);
}

TEST(DistributedSampler, RefusesWhatCannotBe) {
  EXPECT_THAT(message_of([] { DistributedSampler(0, 1, 0); }),
              HasSubstr("[sampler] size: got 0, expected 1 or more samples"));
  EXPECT_THAT(message_of([] { DistributedSampler(-1, 1, 0); }), HasSubstr("got -1"));
  EXPECT_THAT(message_of([] { DistributedSampler(5, 0, 0); }),
              HasSubstr("[sampler] world: got 0, expected 1 or more ranks"));
  EXPECT_THAT(message_of([] { DistributedSampler(5, 2, 2); }),
              HasSubstr("[sampler] rank: got 2, expected 0 to 1 in a world of 2"));
  EXPECT_THAT(message_of([] { DistributedSampler(5, 2, -1); }), HasSubstr("got -1"));
  EXPECT_THAT(
      message_of([] { DistributedSampler(5, 1, 0, {.remainder = static_cast<Remainder>(9)}); }),
      HasSubstr("[sampler] remainder: got 9"));

  DistributedSampler sampler(5, 1, 0);
  EXPECT_THAT(message_of([&] { sampler.next(0); }), HasSubstr("got batch size 0"));
  EXPECT_THAT(message_of([&] { sampler.set_epoch(-1); }), HasSubstr("set_epoch: got -1"));
  EXPECT_THAT(message_of([&] { sampler.advance(0); }), HasSubstr("advance: got 0"));
  EXPECT_THAT(message_of([&] { sampler.advance_samples(0); }), HasSubstr("got 0"));
  (void)sampler.next(2);
  (void)sampler.next(2);
  EXPECT_THAT(message_of([&] { sampler.advance(3); }),
              HasSubstr("[sampler] advance: got 3 batches, expected at most 2, which this pass has "
                        "given out and not advanced over"));
  EXPECT_EQ(sampler.state().cursor, 0) << "nothing is counted then";
  sampler.set_epoch(1);
  EXPECT_THAT(message_of([&] { sampler.advance(); }), HasSubstr("expected at most 0"));
}

TEST(DistributedSampler, RefusesTheStateOfAnotherRun) {
  const SamplerState state = DistributedSampler(50, 1, 0, {.seed = 3}).state();
  DistributedSampler other(60, 2, 0, {.shuffle = false, .seed = 4});
  EXPECT_THAT(message_of([&] { other.load_state(state); }),
              AllOf(HasSubstr("it has 50 samples, this data set 60"),
                    HasSubstr("its seed is 3, this one's 4"),
                    HasSubstr("its order is shuffled, this one's sequential")));
  EXPECT_EQ(other.state().seed, 4);
  DistributedSampler same(50, 3, 2, {.seed = 3, .remainder = Remainder::kDrop});
  same.load_state(state);  // worlds and remainders may differ
}

TEST(SamplerState, IsNamedNumbers) {
  const SamplerState state = {.size = 50, .seed = -7, .shuffle = false, .epoch = 3, .cursor = 12};
  std::map<std::string, int64_t> numbers = state.numbers();
  EXPECT_THAT(numbers, ElementsAre(Pair("cursor", 12), Pair("epoch", 3), Pair("seed", -7),
                                   Pair("shuffle", 0), Pair("size", 50), Pair("version", 1)));
  EXPECT_EQ(SamplerState::from_numbers(numbers), state);

  const auto with = [&](const char* name, int64_t value) {
    std::map<std::string, int64_t> changed = numbers;
    changed[name] = value;
    return message_of([&] { SamplerState::from_numbers(changed); });
  };
  EXPECT_THAT(with("cursor", 51), HasSubstr("cursor: got 51, expected 0 to 50"));
  EXPECT_THAT(with("cursor", -1), HasSubstr("cursor: got -1"));
  EXPECT_THAT(with("epoch", -1), HasSubstr("epoch: got -1"));
  EXPECT_THAT(with("size", 0), HasSubstr("size: got 0"));
  EXPECT_THAT(with("shuffle", 2), HasSubstr("shuffle: got 2, expected 0 or 1"));
  EXPECT_THAT(with("version", 2), HasSubstr("version: got 2, expected 1"));
  EXPECT_THAT(with("sead", 2), HasSubstr("'sead' is unknown"));
  numbers.erase("seed");
  EXPECT_THAT(message_of([&] { SamplerState::from_numbers(numbers); }),
              HasSubstr("'seed' is missing"));
}

TEST(DistributedSampler, GoesThroughAnArchive) {
  DistributedSampler sampler(50, 2, 0, {.seed = 3});
  sampler.set_epoch(2);
  (void)sampler.next(7);
  sampler.advance();
  torch::serialize::OutputArchive out;
  sampler.save(out);
  std::stringstream file;
  out.save_to(file);

  torch::serialize::InputArchive in;
  in.load_from(file);
  DistributedSampler again(50, 2, 0, {.seed = 3});
  again.load(in);
  EXPECT_EQ(again.state(), sampler.state());
  EXPECT_EQ(again.state().cursor, 14);

  torch::serialize::OutputArchive empty;
  std::stringstream other;
  empty.save_to(other);
  torch::serialize::InputArchive nothing;
  nothing.load_from(other);
  EXPECT_THAT(message_of([&] { again.load(nothing); }), HasSubstr("'cursor' is missing"));
}

class WarningText : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { text += warning.msg(); }
  std::string text;
};

TEST(DistributedSampler, WarnsOfBatchesThatWereNotAdvancedOver) {
  WarningText seen;
  const c10::WarningUtils::WarningHandlerGuard guard(&seen);
  const c10::WarningUtils::WarnAlways always(true);
  DistributedSampler sampler(10, 1, 0);
  const auto epoch = [&](int64_t number, int advanced) {
    sampler.set_epoch(number);
    sampler.reset();
    while (sampler.next(2).has_value()) {
    }
    if (advanced > 0) sampler.advance(advanced);
  };
  epoch(0, 5);
  epoch(1, 4);  // a loader with drop_last leaves one
  epoch(2, 0);  // an evaluation
  epoch(3, 3);
  EXPECT_THAT(seen.text, IsEmpty());
  sampler.set_epoch(4);
  EXPECT_THAT(seen.text,
              HasSubstr("epoch 3 is left with 2 batches given out but not advanced over"));
}

TEST(SamplerOnRanks, KnowsItsPlaceAndWhereRanksDiffer) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    DistributedSampler sampler(50, *world, {.seed = 1});
    EXPECT_EQ(sampler.num_samples(), 17);
    EXPECT_EQ(*sampler.next(4), *DistributedSampler(50, 3, world->rank(), {.seed = 1}).next(4));
    sampler.advance();
    sampler.check_ranks(*world);
  });

  const auto errors_of = [](const std::function<void(ProcessGroup&)>& body) {
    return run_ranks_expecting_errors(
        3, [&](const std::shared_ptr<ProcessGroup>& world) { body(*world); });
  };
  EXPECT_THAT(errors_of([](ProcessGroup& world) {
                DistributedSampler sampler(50, world);
                (void)sampler.next(world.rank() == 1 ? 3 : 4);
                sampler.advance();
                sampler.check_ranks(world);
              }),
              Each(AllOf(HasSubstr("[sampler] rank 1 differs from rank 0"),
                         HasSubstr("'cursor 9' vs 'cursor 12'"))));
  EXPECT_THAT(
      errors_of([](ProcessGroup& world) {
        DistributedSampler(50, world, {.seed = world.rank() == 2 ? 1 : 0}).check_ranks(world);
      }),
      Each(AllOf(HasSubstr("rank 2 differs"), HasSubstr("'seed 1' vs 'seed 0'"))));
  EXPECT_THAT(errors_of([](ProcessGroup& world) {
                DistributedSampler(50, /*world=*/3, /*rank=*/0).check_ranks(world);
              }),
              Each(HasSubstr("'rank 0 of 3' vs 'the rank of the group'")));
}

}  // namespace
}  // namespace tessera::internal::testing

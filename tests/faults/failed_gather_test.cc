#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/errors.h"
#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/trainer.h"
#include "tessera/tests/support/watched_window.h"

// The owner of a parameter does not answer while backward reads it: the type that the user catches.
namespace tessera::internal::testing {
namespace {

constexpr const char* kSilence = "rank 0 does not answer";

/// A group whose reads of windows can be made to fail. Its subgroups do the same.
class SilentGroup final : public ForwardingGroup {
 public:
  using Switch = std::shared_ptr<std::atomic<bool>>;

  SilentGroup(std::shared_ptr<ProcessGroup> inner, Switch is_silent)
      : ForwardingGroup(std::move(inner)), is_silent_(std::move(is_silent)) {}

  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override {
    return std::make_unique<WatchedWindow>(
        inner_->make_window(own, name), [this_rank = rank(), is_silent = is_silent_](
                                            int rank, const at::Tensor&, std::string_view tag) {
          if (*is_silent && rank != this_rank) {
            throw CommError({"read", "world", -1, this_rank, std::string(tag)}, kSilence);
          }
        });
  }

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::make_shared<SilentGroup>(std::move(inner), is_silent_);
  }

 private:
  const Switch is_silent_;
};

/// Returns the cause of the CommError that `body` throws; no other type counts.
std::string cause_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const CommError& error) {
    return error.cause();
  } catch (const std::exception& error) {
    return std::string("no CommError: ") + error.what();
  }
  return "no error";
}

/// Trains a step, and makes rank 1's reads fail after the next step's forward.
void run_to_silence(const std::function<void(Trainer&, const at::Tensor& loss)>& then) {
  const auto endings = outcomes_of_ranks(2, [&](std::shared_ptr<ProcessGroup> world) {
    const bool is_cut_off = world->rank() == 1;
    const auto is_silent = std::make_shared<std::atomic<bool>>(false);
    Trainer trainer(std::make_shared<SilentGroup>(std::move(world), is_silent),
                    hostile(apart(configuration_of(Strategy::kZero3))));
    trainer.train(0);
    const at::Tensor loss = trainer.loss(1);
    if (!is_cut_off) return trainer.engine->backward(loss);
    *is_silent = true;
    then(trainer, loss);
  });
  EXPECT_THAT(endings[0], is_comm_error(kSilence));  // all ranks are told that rank 1 gives up
  EXPECT_THAT(endings[1], is_fine());
}

TEST(FailedGather, BackwardOfTheEngineThrowsItsCommError) {
  run_to_silence([](Trainer& trainer, const at::Tensor& loss) {
    EXPECT_EQ(cause_of([&] { trainer.engine->backward(loss); }), kSilence);
    EXPECT_EQ(cause_of([&] { trainer.engine->backward(loss); }), kSilence);
  });
}

// LibTorch checks the storage, and knows only c10::Error.
TEST(FailedGather, PlainBackwardThrowsItsTextAndTheNextCallItsCommError) {
  for (const bool steps : {false, true}) {
    run_to_silence([&](Trainer& trainer, const at::Tensor& loss) {
      EXPECT_THAT(outcome_of([&] { loss.backward(); }), is_comm_error(kSilence));
      EXPECT_EQ(cause_of([&] {
                  if (steps) trainer.engine->step();
                  trainer.engine->zero_grad();
                }),
                kSilence);
    });
  }
}

TEST(FailedGather, TheCallBehindAForwardThrowsItsCommError) {
  run_to_silence([](Trainer& trainer, const at::Tensor&) {
    EXPECT_THAT(outcome_of([&] { trainer.loss(2); }), is_comm_error(kSilence));
    EXPECT_EQ(cause_of([&] { trainer.engine->zero_grad(); }), kSilence);
  });
}

}  // namespace
}  // namespace tessera::internal::testing

// A job whose ranks communicate at random until one of them ends, stops or throws at some call.
// random_kills.sh starts this program with a seed (TESSERA_TEST_MPI_KILL) and checks the outcome.
// Otherwise the test is skipped.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tessera/errors.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

constexpr int kCalls = 40;
constexpr auto kPatience = std::chrono::milliseconds(3000);

/// What a seed determines, the same on all ranks.
struct Plan {
  explicit Plan(unsigned seed, int size) : random(seed) {
    victim = draw(size);
    at = draw(kCalls);
    is_under_way = draw(2) == 1;
    static const std::vector<std::string> kKinds = {"kill",  "crash", "stop", "exit",
                                                    "throw", "abort", "none"};
    kind = kKinds[static_cast<size_t>(draw(static_cast<int>(kKinds.size())))];
  }
  int draw(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random); }

  std::mt19937 random;
  int victim;
  int at;
  bool is_under_way;  // ends in the middle of the call, not before it
  std::string kind;
};

void end_as(const std::string& kind, ProcessGroup& group) {
  if (kind == "kill") ::raise(SIGKILL);
  if (kind == "crash") ::raise(SIGSEGV);
  if (kind == "stop") ::raise(SIGSTOP);
  if (kind == "exit") std::exit(3);
  if (kind == "throw") throw std::runtime_error("of its own");
  if (kind == "abort") group.abort("the user's reason");
}

/// The ranks' groups and their sequence of calls.
class Job {
 public:
  explicit Job(std::shared_ptr<ProcessGroup> world)
      : world_(std::move(world)), other_(duplicate(*world_, "other")) {
    own_ = world_->allocate(100000, at::kFloat).fill_(world_->rank());
    window_ = world_->can().one_sided_reads ? world_->make_window(own_, "window") : nullptr;
    world_->barrier("made");
  }

  /// `between` runs when the call has begun, if it can be interrupted.
  void call(Plan& plan, const std::function<void()>& between) {
    ProcessGroup& group = plan.draw(2) == 0 ? *world_ : *other_;
    const int64_t numel = plan.draw(3) == 0 ? 3 : 1 + plan.draw(200000);
    const int root = plan.draw(group.size());
    const at::Tensor tensor = at::ones({numel * group.size()});
    const at::Tensor part = at::ones({numel});
    switch (plan.draw(6)) {
      case 0:
        return finish(group.all_reduce(tensor, ReduceOp::kSum, "sum"), between);
      case 1:
        return finish(group.reduce_scatter(part, tensor, ReduceOp::kSum, "part"), between);
      case 2:
        return finish(group.all_gather(tensor, part, "all"), between);
      case 3:
        return finish(group.broadcast(part, root, "one"), between);
      case 4:
        return pass_on(group, part, between);
      default:
        return read(root, between);
    }
  }

 private:
  static void finish(const std::shared_ptr<Work>& work, const std::function<void()>& between) {
    between();
    work->wait();
  }

  static void pass_on(ProcessGroup& group, const at::Tensor& part,
                      const std::function<void()>& between) {
    const int next = (group.rank() + 1) % group.size();
    const int last = (group.rank() + group.size() - 1) % group.size();
    const at::Tensor received = at::empty_like(part);
    const auto sent = group.isend(part, next, "ring");
    const auto come = group.irecv(received, last, "ring");
    between();
    sent->wait();
    come->wait();
  }

  void read(int owner, const std::function<void()>& between) {
    if (window_ == nullptr) return between();
    const at::Tensor to = at::empty({own_.numel()});
    const auto work = window_->start_read(owner, 0, to, "unit", Window::kUnversioned);
    between();
    work->wait();
    world_->barrier("read");
  }

  const std::shared_ptr<ProcessGroup> world_;
  const std::shared_ptr<ProcessGroup> other_;
  at::Tensor own_;
  std::unique_ptr<Window> window_;
};

void run_job(unsigned seed) {
  ProcessGroupOptions options;
  options.timeout = kPatience;
  const auto world = init_process_group(options);
  Plan plan(seed, world->size());
  if (world->rank() == 0) {
    std::fprintf(stderr, "seed %u: rank %d of %d: %s %s call %d\n", seed, plan.victim,
                 world->size(), plan.kind.c_str(), plan.is_under_way ? "in" : "before", plan.at);
  }
  Job job(world);
  for (int i = 0; i < kCalls; ++i) {
    const std::function<void()> end = [&] {
      if (world->rank() == plan.victim && i == plan.at) end_as(plan.kind, *world);
    };
    if (!plan.is_under_way) end();
    job.call(plan, plan.is_under_way ? end : std::function<void()>([] {}));
  }
  world->barrier("end");
}

TEST(MpiRandomKill, OneRank) {
  const char* const seed = std::getenv("TESSERA_TEST_MPI_KILL");
  if (seed == nullptr) GTEST_SKIP() << "not started by random_kills.sh";
  try {
    run_job(static_cast<unsigned>(std::atoi(seed)));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "told: %s\n", error.what());
    FAIL();
  }
}

}  // namespace
}  // namespace tessera::internal

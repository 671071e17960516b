#include "tessera/tests/support/fake_nccl/fake_state.h"

namespace tessera::internal::testing {

State& state() {
  static State* const made = new State();
  return *made;
}

bool takes_failure(const char* function, Result& result) {
  const auto found = state().failing.find(function);
  if (found == state().failing.end()) return false;
  result = static_cast<Result>(found->second);
  state().failing.erase(found);
  return true;
}

Result begin(OpaqueComm& comm, std::function<bool()> step) {
  comm.questions = state().questions;
  comm.waiting.push_back(std::move(step));
  return Result::kInProgress;
}

namespace {

class Control final : public FakeNccl {
 public:
  void reset() override {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().calls.clear();
    state().failing.clear();
    state().broken.clear();
    state().complaints.clear();
    state().refuses_windows = false;
    state().questions = 0;
    state().held = state().aborts_held = false;
    state().changed.notify_all();
  }
  std::vector<FakeCall> calls() override {
    const std::lock_guard<std::mutex> lock(state().mutex);
    return state().calls;
  }
  int live_communicators() override {
    const std::lock_guard<std::mutex> lock(state().mutex);
    return static_cast<int>(state().live.size());
  }
  std::vector<std::string> complaints() override {
    const std::lock_guard<std::mutex> lock(state().mutex);
    return state().complaints;
  }
  int live_memory() override {
    const std::lock_guard<std::mutex> lock(state().mutex);
    return static_cast<int>(state().memory.size());
  }
  void refuse_windows() override {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().refuses_windows = true;
  }
  void set_questions_before_launch(int count) override {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().questions = count;
  }
  void hold() override { set(true, &State::held); }
  void hold_aborts() override { set(true, &State::aborts_held); }
  void release() override {
    set(false, &State::held);
    set(false, &State::aborts_held);
  }
  void fail(const std::string& communicator, int rank, int result) override {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().broken[{communicator, rank}] = static_cast<Result>(result);
  }
  void fail_next(const std::string& function, int result) override {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().failing[function] = result;
  }

 private:
  static void set(bool on, bool State::*held) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().*held = on;
    state().changed.notify_all();
  }
};

}  // namespace
}  // namespace tessera::internal::testing

extern "C" tessera::internal::testing::FakeNccl* tessera_fake_nccl() {
  static auto* const control = new tessera::internal::testing::Control();
  return control;
}

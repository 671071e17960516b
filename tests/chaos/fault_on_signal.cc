// Preloaded into gpt: a signal makes a rank leave in a way that no plain signal does. Numbers from
// SIGRTMIN on, in chaos.py's order. Handlers only call _exit or set a flag: what is thrown, or runs
// destructors, comes out of the model's next linear layer, where an operator may throw.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <stdexcept>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/linear_ops.h>

namespace {

enum Wish : int { kNothing, kThrow, kExit };

std::atomic<int> wish = kNothing;
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGRTMIN + number, &action, nullptr);
}

__attribute__((constructor)) void install() {
  on_signal(1, [](int) { wish = kThrow; });
  on_signal(2, [](int) { wish = kExit; });
  on_signal(3, [](int) { ::_exit(3); });
  on_signal(4, [](int) { ::_exit(0); });
}

}  // namespace

namespace at::_ops {

// Found before LibTorch's own; calls what that calls.
at::Tensor linear::call(const at::Tensor& input, const at::Tensor& weight,
                        const ::std::optional<at::Tensor>& bias) {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::linear", "").typed<schema>();
  switch (wish.exchange(kNothing)) {
    case kThrow:
      throw ::std::runtime_error("thrown by fault_on_signal");
    case kExit:
      ::std::exit(3);
    default:
      return handle.call(input, weight, bias);
  }
}

}  // namespace at::_ops

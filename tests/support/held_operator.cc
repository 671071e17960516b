#include "tessera/tests/support/held_operator.h"

#include <cstdint>
#include <exception>
#include <optional>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

namespace tessera::internal::testing {
namespace {

/// Copies the data at `address`, as a tensor like `like`.
at::Tensor copy_from(const void* address, const at::Tensor& like) {
  return at::from_blob(const_cast<void*>(address), like.sizes(), like.scalar_type()).clone();
}

at::Tensor hold(const at::Tensor& input, int64_t meeting_address) {
  auto& meeting = *reinterpret_cast<HeldOperator::Meeting*>(meeting_address);
  const void* const address = input.const_data_ptr();
  meeting.inside.set_value(address);
  meeting.go_on.get_future().wait();
  return copy_from(address, input);
}

at::Tensor call_hold(const at::Tensor& input, HeldOperator::Meeting& meeting) {
  static const torch::Library library = [] {
    torch::Library made(torch::Library::DEF, "tessera_test", std::nullopt, __FILE__,
                        static_cast<uint32_t>(__LINE__));
    made.def("hold(Tensor input, int meeting) -> Tensor", &hold);
    return made;
  }();
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("tessera_test::hold", "")
                                    .typed<at::Tensor(const at::Tensor&, int64_t)>();
  return operation.call(input, reinterpret_cast<int64_t>(&meeting));
}

}  // namespace

HeldOperator::HeldOperator(const at::Tensor& input) : input_(input) {
  thread_ = std::thread([this] {
    const c10::NoGradGuard no_grad;
    try {
      read_ = call_hold(input_, meeting_);
    } catch (...) {
      meeting_.inside.set_exception(std::current_exception());
    }
  });
  try {
    address_ = meeting_.inside.get_future().get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

HeldOperator::~HeldOperator() {
  if (thread_.joinable()) end();
}

at::Tensor HeldOperator::look() const { return copy_from(address_, input_); }

at::Tensor HeldOperator::end() {
  meeting_.go_on.set_value();
  thread_.join();
  return read_;
}

}  // namespace tessera::internal::testing

#include "tessera/tests/support/fake_cuda/captured_operator.h"

#include <cstddef>
#include <optional>
#include <utility>

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>

#include "tessera/tests/support/fake_cuda/host_view.h"
#include "tessera/tests/support/fake_cuda/memory.h"
#include "tessera/tests/support/fake_cuda/operator_call.h"

namespace tessera::internal::testing {
namespace {

using c10::IValue;

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/// Copies a CPU tensor's elements, because a launch takes scalars by value.
at::Tensor by_value(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cuda()) return tensor;
  at::Tensor copy = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
  copy.copy_(tensor);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

/// Copies of the tensors that an operator writes, to learn its results' shapes without its effects.
class Copies {
 public:
  explicit Copies(HostViews& views) : views_(views) {}

  at::Tensor of(const at::Tensor& written) {
    if (!written.defined() || !written.is_cuda()) return written;
    for (const auto& [original, copy] : copies_) {
      if (original.is_same(written)) return copy;
    }
    const at::Tensor view = views_.of(written);
    at::Tensor copy = at::empty_strided(view.sizes(), view.strides(), view.options());
    copy.copy_(view);
    copies_.emplace_back(written, copy);
    return copy;
  }

  /// Returns the tensor of which `result`, returned by the operator, is a copy.
  std::optional<at::Tensor> original_of(const at::Tensor& result) const {
    for (const auto& [original, copy] : copies_) {
      if (copy.is_same(result)) return original;
    }
    return std::nullopt;
  }

  /// If the operator has resized a copy, gives its original the new sizes, and memory for them.
  void resize_originals(int device) const {
    for (const auto& [original, copy] : copies_) {
      if (original.sizes() == copy.sizes() && original.strides() == copy.strides()) continue;
      const size_t bytes = copy.storage().nbytes();
      if (original.storage().nbytes() < bytes) {
        const int old = Machine::current();
        Machine::restore_current(device);
        original.storage().set_data_ptr_noswap(DeviceMemory::get().allocate(bytes));
        original.storage().set_nbytes(bytes);
        Machine::restore_current(old);
      }
      original.unsafeGetTensorImpl()->set_sizes_and_strides(copy.sizes(), copy.strides(), 0);
    }
  }

 private:
  HostViews& views_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

/// Returns the argument with `change` applied to each of its tensors.
template <typename Change>
IValue changed(const IValue& value, const c10::Argument& argument, int device, Change change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(change(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(change(*tensor)) : std::nullopt);
    }
    return list;
  }
  if (value.isDevice()) return c10::Device(c10::DeviceType::CPU);
  if (value.isNone() && argument.name() == "generator") return Machine::get().generator(device);
  return value;
}

/// Restores a device's generator, because the operator's run draws numbers whose values are not
/// used.
class KeepRandomNumbers {
 public:
  KeepRandomNumbers(const c10::FunctionSchema& schema, int device) {
    for (const c10::Argument& argument : schema.arguments()) {
      if (argument.name() != "generator") continue;
      generator_ = Machine::get().generator(device);
      before_ = generator_->get_state();
    }
  }
  ~KeepRandomNumbers() {
    if (generator_) generator_->set_state(before_);
  }
  KeepRandomNumbers(const KeepRandomNumbers&) = delete;
  KeepRandomNumbers& operator=(const KeepRandomNumbers&) = delete;

 private:
  std::optional<at::Generator> generator_;
  at::Tensor before_;
};

}  // namespace

std::vector<IValue> capture_operator(const std::shared_ptr<Capture>& capture,
                                     const DeviceStream& stream, int device,
                                     const c10::OperatorHandle& op,
                                     const std::vector<IValue>& arguments) {
  const c10::FunctionSchema& schema = op.schema();
  HostViews views(device, Keep::kYes);
  Copies copies(views);
  torch::jit::Stack stack;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    stack.push_back(changed(arguments[i], argument, device, [&](const at::Tensor& tensor) {
      return is_written(argument) ? copies.of(tensor) : views.of(tensor);
    }));
  }
  {
    const KeepRandomNumbers drawn_for_nothing(schema, device);
    run_cpu_kernel(op, &stack);
  }
  copies.resize_originals(device);

  // Where each replay puts the kernel's results that are neither arguments nor views of them.
  std::vector<std::vector<std::pair<size_t, at::Tensor>>> places(stack.size());
  const auto returned = [&](const at::Tensor& result,
                            std::vector<std::pair<size_t, at::Tensor>>& to, size_t position) {
    if (!result.defined()) return result;
    if (const auto original = copies.original_of(result)) return *original;
    const bool is_new = !views.knows(result);
    at::Tensor made = views.back(result);
    if (is_new && made.is_cuda()) to.emplace_back(position, host_view(made, Keep::kNo));
    return made;
  };
  std::vector<IValue> results;
  for (size_t i = 0; i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      results.emplace_back(returned(stack[i].toTensor(), places[i], 0));
    } else if (stack[i].isTensorList()) {
      c10::List<at::Tensor> list;
      size_t position = 0;
      for (const at::Tensor& tensor : stack[i].toTensorVector()) {
        list.push_back(returned(tensor, places[i], position++));
      }
      results.emplace_back(std::move(list));
    } else {
      results.push_back(stack[i]);
    }
  }

  HostViews addresses(device, Keep::kNo);
  torch::jit::Stack launch;
  for (size_t i = 0; i < arguments.size(); ++i) {
    launch.push_back(
        changed(arguments[i], schema.arguments()[i], device,
                [&](const at::Tensor& tensor) { return addresses.of(by_value(tensor)); }));
  }
  capture->add(stream, [op, launch = std::move(launch), places = std::move(places)] {
    torch::jit::Stack values = launch;
    run_cpu_kernel(op, &values);
    for (size_t i = 0; i < places.size(); ++i) {
      for (const auto& [position, to] : places[i]) {
        to.copy_(values[i].isTensor() ? values[i].toTensor()
                                      : values[i].toTensorVector()[position]);
      }
    }
  });
  return results;
}

}  // namespace tessera::internal::testing

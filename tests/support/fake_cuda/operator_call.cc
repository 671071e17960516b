#include "tessera/tests/support/fake_cuda/operator_call.h"

#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "tessera/tests/support/fake_cuda/captured_operator.h"
#include "tessera/tests/support/fake_cuda/host_view.h"
#include "tessera/tests/support/fake_cuda/machine.h"

namespace tessera::internal::testing {
namespace {

using c10::IValue;

/// Calls `visit` with each defined tensor of an argument.
template <typename Visit>
void for_each_tensor(const IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor && tensor->defined()) visit(*tensor);
    }
  }
}

bool is_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

/// Operators that accept host tensors as indices into a device tensor, and copies.
bool takes_host_tensors(const std::string& name) {
  return name.find("index") != std::string::npos || name.find("aten::") != 0 ||
         name == "aten::copy_";
}

/// Operators for which the host must know a result's size or value.
bool waits_on_gpu(const std::string& name, c10::ArrayRef<IValue> arguments) {
  static const std::unordered_set<std::string_view> names = {"aten::equal",
                                                             "aten::nonzero",
                                                             "aten::masked_select",
                                                             "aten::_unique",
                                                             "aten::_unique2",
                                                             "aten::unique_dim",
                                                             "aten::unique_consecutive",
                                                             "aten::bincount",
                                                             "aten::repeat_interleave"};
  if (names.count(name) != 0) return true;
  if (name.find("index") == std::string::npos) return false;
  bool has_mask = false;
  for (const IValue& value : arguments) {
    if (!value.isOptionalTensorList()) continue;
    for_each_tensor(value, [&](const at::Tensor& index) {
      has_mask |= index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
    });
  }
  return has_mask;
}

/// The device of the call's tensors.
int device_of(const c10::FunctionSchema& schema, c10::ArrayRef<IValue> arguments) {
  int device = -1;
  const std::string& name = schema.name();
  for (const IValue& value : arguments) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (tensor.is_cuda()) {
        const int index = tensor.device().index();
        TORCH_CHECK(device < 0 || device == index,
                    "Expected all tensors to be on the same device, but found at least two "
                    "devices, cuda:",
                    device, " and cuda:", index, "! (", name, ")");
        device = index;
      }
    });
  }
  if (device >= 0 && !takes_host_tensors(name)) {
    for (const IValue& value : arguments) {
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        TORCH_CHECK(tensor.is_cuda() || tensor.dim() == 0,
                    "Expected all tensors to be on the same device, but found at least two "
                    "devices, cuda:",
                    device, " and ", tensor.device(), "! (", name, ")");
      });
    }
  }
  for (const IValue& value : arguments) {
    if (device < 0 && value.isDevice() && value.toDevice().has_index()) {
      device = static_cast<unsigned char>(value.toDevice().index());
    }
  }
  return device >= 0 ? device : Machine::current();
}

IValue on_cpu(const IValue& value, const c10::Argument& argument, HostViews& views, int device) {
  if (value.isTensor()) return views.of(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(views.of(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(views.of(*tensor)) : std::nullopt);
    }
    return list;
  }
  if (value.isDevice()) return c10::Device(c10::DeviceType::CPU);
  if (value.isNone() && argument.name() == "generator") {
    return Machine::get().generator(device);
  }
  return value;
}

IValue on_device(const IValue& value, HostViews& views) {
  if (value.isTensor()) return views.back(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(views.back(tensor));
    return list;
  }
  return value;
}

}  // namespace

void begin_operator(int device) {
  Machine& machine = Machine::get();
  ++machine.counts(device).operators;
  machine.current_queue(device).drain();
}

void count_host_sync(int device) { ++Machine::get().counts(device).host_syncs; }

void run_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView no_gradients;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  op.callBoxed(*stack);
}

void call_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t size = schema.arguments().size();
  const std::vector<IValue> arguments(stack->end() - static_cast<ptrdiff_t>(size), stack->end());
  torch::jit::drop(*stack, size);
  const int device = device_of(schema, arguments);
  if (!is_view(schema)) {
    DeviceStream& stream = Machine::get().current_queue(device);
    if (const auto capture = stream.capture()) {
      // Throws, because the stream captures.
      if (waits_on_gpu(schema.name(), arguments)) stream.drain();
      ++Machine::get().counts(device).operators;
      // The kernel runs once now, to learn the shapes, and may read what other streams are writing.
      // So wait for them.
      for (DeviceStream* other : Machine::get().queues(device)) {
        if (other->capture() == nullptr) other->drain();
      }
      for (c10::IValue& result : capture_operator(capture, stream, device, op, arguments)) {
        stack->push_back(std::move(result));
      }
      return;
    }
    begin_operator(device);
    if (waits_on_gpu(schema.name(), arguments)) count_host_sync(device);
  }

  HostViews views(device);
  const size_t bottom = stack->size();
  for (size_t i = 0; i < size; ++i) {
    stack->push_back(on_cpu(arguments[i], schema.arguments()[i], views, device));
  }
  run_cpu_kernel(op, stack);
  for (size_t i = 0; i < size; ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    for_each_tensor(arguments[i], [&](const at::Tensor& written) { views.update(written); });
  }
  for (size_t i = bottom; i < stack->size(); ++i) (*stack)[i] = on_device((*stack)[i], views);
}

}  // namespace tessera::internal::testing

TORCH_LIBRARY_IMPL(_, CUDA, kernels) {
  kernels.fallback(
      torch::CppFunction::makeFromBoxedFunction<&tessera::internal::testing::call_on_cpu>());
}

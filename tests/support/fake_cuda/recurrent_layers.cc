// Recurrent layers. On a GPU they take another path than on the CPU before they reach operators
// that could be replaced, so they are replaced as a whole, forward and backward.
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tessera/tests/support/fake_cuda/host_view.h"
#include "tessera/tests/support/fake_cuda/operator_call.h"

namespace tessera::internal::testing {
namespace {

using at::Tensor;
using c10::IValue;
using Tensors = std::vector<Tensor>;

constexpr int64_t kOneTensor = -1;

/// Takes the tensors out of the arguments and leaves their number, or kOneTensor.
Tensors take_tensors(std::vector<IValue>& arguments) {
  Tensors tensors;
  for (IValue& value : arguments) {
    if (value.isTensor()) {
      tensors.push_back(value.toTensor());
      value = c10::List<int64_t>({kOneTensor});
    } else if (value.isTensorList()) {
      const Tensors list = value.toTensorVector();
      tensors.insert(tensors.end(), list.begin(), list.end());
      value = c10::List<int64_t>({static_cast<int64_t>(list.size())});
    }
  }
  return tensors;
}

/// The inverse of take_tensors().
torch::jit::Stack put_tensors(const std::vector<IValue>& arguments, const Tensors& tensors) {
  torch::jit::Stack stack;
  size_t next = 0;
  for (const IValue& value : arguments) {
    if (!value.isIntList()) {
      stack.push_back(value);
    } else if (const int64_t count = value.toIntVector()[0]; count == kOneTensor) {
      stack.emplace_back(tensors[next++]);
    } else {
      const at::TensorList list(tensors.data() + next, static_cast<size_t>(count));
      stack.emplace_back(c10::List<Tensor>(list));
      next += list.size();
    }
  }
  return stack;
}

struct Call {
  c10::OperatorHandle op;
  std::vector<IValue> arguments;  // without tensors
  bool has_gradients;

  /// Computes the results for `tensors`, which are on the CPU.
  Tensors operator()(const Tensors& tensors) const {
    torch::jit::Stack stack = put_tensors(arguments, tensors);
    // Matrix products take other paths if gradients are needed.
    const at::AutoGradMode gradients(has_gradients);
    op.callBoxed(stack);
    Tensors results;
    for (const IValue& value : stack) results.push_back(value.toTensor());
    return results;
  }
};

int index_of(at::TensorList tensors) {
  for (const Tensor& tensor : tensors) {
    if (tensor.is_cuda()) return tensor.device().index();
  }
  return 0;
}

/// Returns `tensors` on the CPU, as leaves of a graph.
Tensors leaves(at::TensorList tensors, HostViews& views) {
  Tensors on_cpu;
  for (const Tensor& tensor : tensors) {
    on_cpu.push_back(tensor.defined() ? views.of(tensor).detach() : tensor);
    if (tensor.requires_grad()) on_cpu.back().set_requires_grad(true);
  }
  return on_cpu;
}

/// Recomputes in backward, so that it saves only its arguments, as any operator does.
struct Recurrent : torch::autograd::Function<Recurrent> {
  static Tensors forward(torch::autograd::AutogradContext* context, const Call& call,
                         at::TensorList tensors) {
    context->save_for_backward(tensors.vec());
    context->set_materialize_grads(false);  // an added zero would change the order of sums
    context->saved_data["name"] = call.op.operator_name().name;
    context->saved_data["overload"] = call.op.operator_name().overload_name;
    context->saved_data["arguments"] = c10::ivalue::Tuple::create(call.arguments);
    const int device = index_of(tensors);
    begin_operator(device);
    HostViews views(device);
    Tensors results = call(leaves(tensors, views));
    for (Tensor& result : results) result = views.back(result.detach());
    return results;
  }

  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& grads) {
    const auto& saved = context->saved_data;
    const Call call{
        c10::Dispatcher::singleton().findSchemaOrThrow(saved.at("name").toStringRef().c_str(),
                                                       saved.at("overload").toStringRef().c_str()),
        saved.at("arguments").toTupleRef().elements().vec(), /*has_gradients=*/true};
    const Tensors tensors = context->get_saved_variables();
    const int device = index_of(tensors);
    begin_operator(device);
    HostViews views(device);
    const Tensors on_cpu = leaves(tensors, views);
    Tensors wanted;
    for (const Tensor& tensor : on_cpu) {
      if (tensor.requires_grad()) wanted.push_back(tensor);
    }
    const Tensors results = call(on_cpu);
    Tensors outputs;
    Tensors grads_on_cpu;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!grads[i].defined() || !results[i].requires_grad()) continue;
      outputs.push_back(results[i]);
      grads_on_cpu.push_back(views.of(grads[i]));
    }
    const Tensors computed =
        torch::autograd::grad(outputs, wanted, grads_on_cpu, std::nullopt, /*create_graph=*/false,
                              /*allow_unused=*/true);
    Tensors all = {Tensor()};  // the argument `call` has no gradient
    size_t next = 0;
    for (const Tensor& tensor : tensors) {
      all.push_back(tensor.requires_grad() ? views.back(computed[next++]) : Tensor());
    }
    return all;
  }
};

/// Whether random numbers are drawn; recomputing would draw others.
bool drops(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  const auto at = [&](const char* name) -> const IValue* {
    const auto index = schema.argumentIndexWithName(name);
    if (!index) return nullptr;
    return &torch::jit::peek(stack, static_cast<size_t>(*index), schema.arguments().size());
  };
  const IValue* const train = at("train");
  return train != nullptr && train->toBool() && at("dropout")->toDouble() > 0;
}

void call_recurrent(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (drops(op.schema(), *stack)) {
    // Take the GPU's path, operator by operator.
    return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CUDA), stack);
  }
  Call call{op, torch::jit::pop(*stack, op.schema().arguments().size()),
            at::GradMode::is_enabled()};
  const Tensors tensors = take_tensors(call.arguments);
  for (const Tensor& result : Recurrent::apply(call, at::TensorList(tensors)))
    stack->emplace_back(result);
}

TORCH_LIBRARY_IMPL(aten, AutogradCUDA, kernels) {
  for (const char* name :
       {"lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input", "rnn_tanh.data",
        "rnn_relu.input", "rnn_relu.data", "lstm_cell", "gru_cell"}) {
    kernels.impl(name, torch::CppFunction::makeFromBoxedFunction<&call_recurrent>());
  }
}

}  // namespace
}  // namespace tessera::internal::testing

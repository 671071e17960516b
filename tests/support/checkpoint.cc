#include "tessera/tests/support/checkpoint.h"

#include <utility>

#include <torch/custom_class.h>
#include <torch/torch.h>

namespace tessera::testing {
namespace {

struct Block : torch::CustomClassHolder {
  explicit Block(std::function<at::Tensor(const at::Tensor&)> to_run) : run(std::move(to_run)) {}
  std::function<at::Tensor(const at::Tensor&)> run;
};

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const c10::intrusive_ptr<Block>& block) {
    context->save_for_backward({input});
    context->saved_data["block"] = c10::IValue::make_capsule(block);
    return block->run(input);  // runs without a graph
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto block =
        c10::static_intrusive_pointer_cast<Block>(context->saved_data["block"].toCapsule());
    const at::AutoGradMode grad_mode(true);
    const at::Tensor input = context->get_saved_variables()[0].detach().set_requires_grad(true);
    torch::autograd::backward({block->run(input)}, {gradients[0]});
    return {input.grad(), at::Tensor()};
  }
};

}  // namespace

at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor&)> block, const at::Tensor& input) {
  return Checkpoint::apply(input, c10::make_intrusive<Block>(std::move(block)));
}

}  // namespace tessera::testing

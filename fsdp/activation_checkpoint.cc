#include "tessera/activation_checkpoint.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_set>

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/torch.h>

#include "tessera/core/grad/autograd_node.h"
#include "tessera/fsdp/forward_state.h"

namespace tessera::internal {
namespace {

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

int64_t version_of(const Tensor& tensor) {
  return tensor.defined() && !tensor.is_inference() ? static_cast<int64_t>(tensor._version()) : 0;
}

torch::autograd::edge_list edges_to(const std::vector<Tensor>& tensors) {
  torch::autograd::edge_list edges;
  for (const Tensor& tensor : tensors) {
    edges.push_back(tensor.defined() ? torch::autograd::impl::gradient_edge(tensor)
                                     : torch::autograd::Edge());
  }
  return edges;
}

/// Returns an alias of `input`, detached from the present graph, with which a new graph starts.
/// Sets `leaf` to the leaf of the new graph, which gets the gradient of `input`.
Tensor begin_graph(const Tensor& input, Tensor& leaf) {
  leaf = input.detach();
  if (!input.requires_grad()) return leaf;
  leaf.set_requires_grad(true);
  if (input.is_leaf()) return leaf;
  // If `input` is not a leaf, the returned alias must not be one, because autocast caches the casts
  // of leaves: all uses of an activation that is a leaf would share one cast, whose gradients are
  // added in 16 bits. Without checkpointing they are added in 32.
  Tensor inner = input.detach();
  const auto identity = make_node<torch::autograd::Identity>();
  identity->set_next_edges(edges_to({leaf}));
  torch::autograd::set_history(inner, identity);
  return inner;
}

/// Recognises the nodes that were made before this object. Nodes are numbered per thread in the
/// order of their creation.
struct GraphStart {
  uint64_t thread = at::RecordFunction::currentThreadId();
  uint64_t first_node = at::sequence_number::peek();

  bool is_before(const Node& node) const {
    return node.thread_id() == thread && node.sequence_nr() < first_node;
  }
};

/// Throws if the recomputed graph leads into an older one, because the inner backward would run
/// through (and free) parts of the surrounding graph, in the worst case this very checkpoint.
void check_closed(const std::vector<Tensor>& roots, const GraphStart& start) {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> open;
  const auto visit = [&](const Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  for (const Tensor& root : roots) visit(root.grad_fn().get());
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    TORCH_CHECK(!start.is_before(*node),
                "[checkpoint] fn: got a captured tensor that has a graph of its own (",
                node->name(),
                "), expected such tensors among the inputs; do checkpoint(fn, ..., "
                "that tensor)");
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
}

/// Returns the GPU on which inputs lie, if any. `fn` may draw random numbers from that GPU's
/// generator as well as from the CPU's.
std::optional<c10::Device> gpu_of(const std::vector<Tensor>& inputs) {
  std::optional<c10::Device> gpu;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || inputs[i].is_cpu()) continue;
    const c10::Device device = inputs[i].device();
    TORCH_CHECK(device.is_cuda() && (!gpu || *gpu == device), "[checkpoint] input tensor ", i,
                ": got device ", device, ", expected cpu or ", gpu ? gpu->str() : "one GPU",
                ": the random state of other devices is not preserved; set "
                "preserve_random_state to false if fn draws no random numbers");
    gpu = device;
  }
  return gpu;
}

/// The node that a checkpoint leaves in the graph.
class CheckpointBackward final : public Node {
 public:
  CheckpointBackward(const CheckpointOptions& options, const std::vector<Tensor>& inputs,
                     TensorFunction again)
      : Node(edges_to(inputs)),
        state_(options.preserve_random_state ? ForwardState::Random::kKept
                                             : ForwardState::Random::kIgnored,
               options.preserve_random_state ? gpu_of(inputs) : std::nullopt),
        again_(std::move(again)) {
    inputs_.reserve(inputs.size());
    for (const Tensor& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
  }

  std::string name() const override { return "TesseraCheckpointBackward"; }
  const ForwardState& state() const { return state_; }

  void release_variables() override {
    TensorFunction dropped;  // destroyed after unlocking: its captures' destructors are user code
    const std::lock_guard<std::mutex> lock(mutex_);
    is_released_ = true;
    for (SavedVariable& input : inputs_) input.reset_data();
    dropped.swap(again_);
    state_.random.reset();
  }

  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "[checkpoint] backward: got create_graph=true, expected false: a recomputed graph "
                "is gone when its gradients are there; do not checkpoint what is differentiated "
                "twice");
    TORCH_CHECK(torch::autograd::Engine::get_default_engine().is_checkpoint_valid(),
                "[checkpoint] backward: got autograd::grad() or backward() with inputs, expected a "
                "plain backward(): gradients of parameters inside fn can only be accumulated; do "
                "loss.backward() and read .grad(), or do not checkpoint here");
    const Busy busy(is_busy_);
    const Recomputed graph = recompute();

    std::vector<Tensor> roots;
    std::vector<Tensor> root_gradients;
    for (size_t i = 0; i < graph.outputs.size(); ++i) {
      if (!gradients[i].defined() || !graph.outputs[i].requires_grad()) continue;
      roots.push_back(graph.outputs[i]);
      root_gradients.push_back(std::move(gradients[i]));
    }
    variable_list input_gradients(graph.leaves.size());
    if (roots.empty()) return input_gradients;
    check_closed(roots, graph.start);
    torch::autograd::backward(roots, root_gradients);
    for (size_t i = 0; i < graph.leaves.size(); ++i) {
      if (graph.leaves[i].defined()) input_gradients[i] = graph.leaves[i].grad();
    }
    return input_gradients;
  }

 private:
  /// Marks the checkpoint as recomputing while it lives. The constructor throws if the checkpoint
  /// is recomputing already.
  class Busy {
   public:
    explicit Busy(std::atomic<bool>& flag) : flag_(flag) {
      TORCH_CHECK(!flag_.exchange(true),
                  "[checkpoint] backward: got a backward through a checkpoint that is recomputing, "
                  "expected one at a time; do not capture a checkpoint's output in its own fn, nor "
                  "run two threads' backward through one graph");
    }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
    ~Busy() { flag_.store(false); }

   private:
    std::atomic<bool>& flag_;
  };

  struct Recomputed {
    std::vector<Tensor> leaves;
    GraphStart start;
    std::vector<Tensor> outputs;
  };

  Recomputed recompute() {
    Recomputed graph;
    std::vector<Tensor> inputs;
    TensorFunction again;
    std::optional<ForwardState> state;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      TORCH_CHECK(!is_released_, torch::autograd::ERR_BACKWARD_TWICE);
      again = again_;
      state = state_;
      for (const SavedVariable& saved : inputs_) inputs.push_back(saved.unpack());
    }
    graph.leaves.resize(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].defined()) inputs[i] = begin_graph(inputs[i], graph.leaves[i]);
    }
    {
      const at::AutoGradMode grad_mode(true);
      const ReplayScope replay(*state);
      graph.outputs = again(inputs);
    }
    check_outputs(graph.outputs);
    return graph;
  }

  void check_outputs(const std::vector<Tensor>& outputs) const {
    TORCH_CHECK(outputs.size() == num_inputs(), "[checkpoint] fn: got ", outputs.size(),
                " output tensors when run again, expected ", num_inputs(),
                " as in the forward; do the same in both runs");
    for (uint32_t i = 0; i < num_inputs(); ++i) {
      const torch::autograd::InputMetadata& expected = input_metadata(i);
      if (!expected.was_default_constructed() && outputs[i].defined()) {
        TORCH_CHECK(outputs[i].sym_sizes() == expected.shape_as_dim_vector() &&
                        outputs[i].dtype() == expected.dtype(),
                    "[checkpoint] fn: got output ", i, " of ", outputs[i].dtype(), " ",
                    outputs[i].sym_sizes(), " when run again, expected ", expected.dtype(), " ",
                    expected.shape_as_dim_vector(), " as in the forward; do the same in both runs");
      }
    }
  }

  ForwardState state_;
  std::vector<SavedVariable> inputs_;
  TensorFunction again_;
  bool is_released_ = false;
  std::atomic<bool> is_busy_{false};
};

}  // namespace

std::vector<Tensor> run_checkpointed(const CheckpointOptions& options, std::vector<Tensor> inputs,
                                     const TensorFunction& first, TensorFunction again) {
  std::vector<int64_t> versions;
  versions.reserve(inputs.size());
  for (const Tensor& input : inputs) versions.push_back(version_of(input));
  const auto node = make_node<CheckpointBackward>(options, inputs, std::move(again));

  std::vector<Tensor> outputs;
  {
    const at::NoGradGuard no_grad;
    ForwardScope forward(node->state());
    outputs = first(inputs);
    forward.finish();
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK(version_of(inputs[i]) == versions[i], "[checkpoint] input tensor ", i,
                ": got a write in fn, expected none: fn would start from the written values when "
                "run again; do clone() first");
  }
  for (Tensor& output : outputs) {
    if (!output.defined() || !torch::autograd::isDifferentiableType(output.scalar_type())) {
      node->add_input_metadata(Node::undefined_input());
      continue;
    }
    // An output may be an input, another output, or a view of either. Each is detached, so that
    // autograd takes it for a new tensor.
    output = output.detach();
    torch::autograd::set_history(output, node);
  }
  return outputs;
}

}  // namespace tessera::internal

#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

namespace tessera::internal {

/// Makes a node, held by the kind of pointer that this LibTorch uses for nodes (2.11:
/// std::shared_ptr, with a deleter that does not recurse along the graph; 2.15:
/// c10::intrusive_ptr).
template <typename T, typename Pointer = decltype(torch::autograd::Edge::function),
          typename... Arguments>
auto make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                              [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace tessera::internal

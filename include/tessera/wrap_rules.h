#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include "tessera/wrap_policy.h"

// The rules that decide which modules become units of their own (Options::wrap). All of them look
// at the model's registered modules only, are local and cheap, and choose the same on every rank;
// parallelize compares the resulting units across ranks. A rule changes memory and traffic, never
// results. Parameters that a rule does not choose form the root unit. Rules are not applied to the
// model itself, which is the root. A module registered under several names is one module, known by
// its first name.

namespace tessera {

/// The default. Chooses each direct child of a ModuleList or Sequential if the child owns
/// parameters and has a sibling of the same type in that container. Outer containers are searched
/// before inner ones, and modules inside a chosen child are not considered. A ModuleDict does not
/// count as a container, but its children are searched: its entries are more often parts with
/// different roles than repeated blocks.
///
///   model: { embed: Embedding, layers: ModuleList { Block, Block, Block }, head: Linear }
///   units: layers.2, layers.1, layers.0, root (embed and head)
WrapPolicy wrap_blocks();

/// Chooses every module for which `accepts` returns true. `name`: the name of the module, such as
/// "layers.0.attention". Modules that own no parameters, neither themselves nor below, are not
/// asked about. An accepted module inside another accepted one makes its own unit. `rule` names the
/// rule in messages and is compared across ranks. Throws c10::Error if `accepts` is empty or, later
/// in parallelize, if nothing is accepted (use wrap_whole() if that is intended).
///
///   options.wrap = tessera::wrap_if("stages", [](std::string_view name, const auto&) {
///     return name.starts_with("stage") && name.find('.') == name.npos;
///   });
WrapPolicy wrap_if(
    std::string rule,
    std::function<bool(std::string_view name, const torch::nn::Module& module)> accepts);

/// Chooses every module that has one of these types or derives from one of them, nested modules
/// included. A type is the module's or its holder's: torch::nn::Linear and torch::nn::LinearImpl
/// mean the same. parallelize throws c10::Error if the model has no such module that owns
/// parameters.
///
///   options.wrap = tessera::wrap_by_type<torch::nn::TransformerEncoderLayer>();
template <typename... Modules>
WrapPolicy wrap_by_type();

/// Chooses, from the leaves upwards, every module with at least `least_numel` parameter elements
/// that no chosen module below it owns; so units have about that size or more, for any model. It
/// never chooses a ModuleList or ModuleDict, nor a part of a MultiheadAttention, because one
/// operator reads all of its parameters together. An element counts for a module if all names of
/// its parameter lie in that module; each element belongs to the innermost chosen module for which
/// it counts, or to the root. Throws c10::Error unless least_numel is 1 or more. Source: PyTorch's
/// size_based_auto_wrap_policy; unlike that policy, this one makes a large MultiheadAttention a
/// unit.
///
///   options.wrap = tessera::wrap_by_size(10'000'000);  // 40 MB of float each, or more
WrapPolicy wrap_by_size(int64_t least_numel);

/// Makes exactly these units, each a list of module names; the modules of one list share a unit
/// named "a + b". parallelize throws c10::Error that lists every name which is unknown, occurs
/// twice or owns no parameters, and all valid names.
///
///   options.wrap = tessera::wrap_modules({{"encoder"}, {"decoder.0", "decoder.1"}});
WrapPolicy wrap_modules(std::vector<std::vector<std::string>> units);

/// Makes one root unit of everything: parameters are split between steps and whole during a step.
/// For models whose parameters fit into the memory of a rank, but whose optimizer state and
/// gradients do not.
WrapPolicy wrap_whole();

// Implementation only below.

template <typename... Modules>
WrapPolicy wrap_by_type() {
  static_assert(sizeof...(Modules) > 0, "wrap_by_type<...>() needs at least one type of module");
  const auto apply = []<typename Module>(std::type_identity<Module>, auto&& use) {
    if constexpr (requires { typename Module::ContainedType; }) {
      return use(std::type_identity<typename Module::ContainedType>());
    } else {
      return use(std::type_identity<Module>());
    }
  };
  std::string types;
  const auto append = [&types]<typename Module>(std::type_identity<Module>) {
    types += (types.empty() ? "" : ", ") + std::string(c10::demangle_type<Module>());
  };
  (apply(std::type_identity<Modules>(), append), ...);
  return wrap_if("wrap_by_type<" + types + ">",
                 [apply](std::string_view, const torch::nn::Module& module) {
                   const auto is_a = [&module]<typename Module>(std::type_identity<Module>) {
                     return dynamic_cast<const Module*>(&module) != nullptr;
                   };
                   return (apply(std::type_identity<Modules>(), is_a) || ...);
                 });
}

}  // namespace tessera

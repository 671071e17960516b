#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

namespace tessera {

/// Chooses parameters by name, or by name and tensor: a callable that takes `(std::string_view
/// name)` or `(std::string_view name, const at::Tensor& parameter)` and returns bool. The tensor is
/// the model's own. The result may depend on the tensor's sizes. It may depend on its dtype only in
/// parallelize(), because later the tensor may have been converted to another dtype. It must not
/// depend on the tensor's values, because these may differ between ranks or be freed.
class ParameterPredicate {
 public:
  /// Makes an empty predicate, which is refused where a predicate is needed.
  ParameterPredicate() = default;
  ParameterPredicate(std::nullptr_t) {}
  template <typename Callable>
  requires(!std::same_as<std::decay_t<Callable>, ParameterPredicate> &&
           std::predicate<Callable&, std::string_view, const at::Tensor&>)
      ParameterPredicate(Callable callable)
      : accepts_(std::move(callable)) {}
  template <typename Callable>
  requires(!std::same_as<std::decay_t<Callable>, ParameterPredicate> &&
           std::predicate<Callable&, std::string_view> &&
           !std::predicate<Callable&, std::string_view, const at::Tensor&>)
      ParameterPredicate(Callable callable) {
    std::function<bool(std::string_view)> by_name(std::move(callable));
    if (by_name == nullptr) return;
    accepts_ = [by_name = std::move(by_name)](std::string_view name, const at::Tensor&) {
      return by_name(name);
    };
  }

  explicit operator bool() const { return static_cast<bool>(accepts_); }
  bool operator()(std::string_view name, const at::Tensor& parameter) const {
    return accepts_(name, parameter);
  }

 private:
  std::function<bool(std::string_view name, const at::Tensor& parameter)> accepts_;
};

}  // namespace tessera

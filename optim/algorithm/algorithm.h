#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "tessera/element_state.h"
#include "tessera/optim/algorithm/device_rule.h"
#include "tessera/optim/algorithm/whole_state.h"
#include "tessera/optimizer_form.h"

namespace tessera::internal {

class ElementUpdate;
class WholeUpdate;

/// One hyper-parameter of an algorithm: how to read and write it in the options, and its allowed
/// values, begin <= value < end. `begin` is -infinity if there is neither a lower nor an upper
/// bound, and 0 if there is only a lower one. A switch is 1 or 0. If chooses_states is true, the
/// value decides which states exist. Checks, comparisons between ranks, saved states and messages
/// use this description.
struct HyperParameterField : ErasedForm::Number {
  using Options = torch::optim::OptimizerOptions;

  /// Describes a number. `access` must be a lambda without captures: access(options) returns a
  /// reference to the number, for options of type `Type&` and `const Type&`.
  template <typename Type, typename Access>
  static HyperParameterField number(const char* name, Access /*access*/,
                                    double end = std::numeric_limits<double>::infinity()) {
    using Value = std::remove_reference_t<std::invoke_result_t<Access, Type&>>;
    return {{.name = name,
             .is_switch = false,
             .is_whole = std::is_integral_v<Value>,
             .chooses_states = false,
             .begin = 0,
             .end = end,
             .read = &read_by<Type, Access>,
             .write = &write_by<Type, Access>}};
  }
  /// Describes a switch in the same way: a bool, or an enum whose values are 0 and 1.
  template <typename Type, typename Access>
  static HyperParameterField toggle(const char* name, Access access, bool chooses_states = false) {
    HyperParameterField field = number<Type>(name, access, /*end=*/2);
    field.is_switch = true;
    field.is_whole = false;
    field.chooses_states = chooses_states;
    return field;
  }

  /// Returns true if a StateDict holds the value. It lacks fields that choose states, because the
  /// program sets such fields before it loads states.
  bool is_saved() const { return !chooses_states; }
  bool allows(double value) const;
  /// Returns what is wrong with `value`, "<name>: got X, expected Y"; "" if nothing.
  std::string problem(double value) const;
  /// Returns "lr 0.001", with all digits; for a switch, returns its name if it is on, else "".
  std::string text(double value) const;
  /// Returns 64 bits that are equal for two values only if the values are equal.
  int64_t word(double value) const;

 private:
  template <typename Type, typename Access>
  static double read_by(const Options& options) {
    return static_cast<double>(Access{}(static_cast<const Type&>(options)));
  }
  template <typename Type, typename Access>
  static void write_by(Options& options, double value) {
    auto& at = Access{}(static_cast<Type&>(options));
    at = static_cast<std::remove_reference_t<decltype(at)>>(value);
  }
};

/// Returns the fields of an Algorithm that runs a user's optimizer: the learning rate and the
/// numbers of `form`.
std::vector<HyperParameterField> fields_of(const ErasedForm& form);

/// A state per element that an algorithm may have to keep.
struct StateField {
  ElementState state;
  /// Returns true if an update with these options uses the state; null: every update does. A
  /// group's parameters have the states that its options use when the engine is made; the engine
  /// refuses options that later use other states.
  std::function<bool(const torch::optim::OptimizerOptions& options)> is_used = nullptr;
  /// Returns the state's value before the first update; null: zeros.
  std::function<double(const torch::optim::OptimizerOptions& options)> initial = nullptr;

  bool is_used_by(const torch::optim::OptimizerOptions& options) const {
    return is_used == nullptr || is_used(options);
  }
  double initial_value(const torch::optim::OptimizerOptions& options) const {
    return initial == nullptr ? 0.0 : initial(options);
  }
};

/// Allocates an uninitialised 1-d tensor in host memory.
using AllocateState = std::function<at::Tensor(int64_t numel, at::ScalarType dtype)>;

/// Describes an optimization algorithm to the rest of the library. Each algorithm has one, in a
/// file of its own; optim/algorithms lists them. elementwise() makes one for a user's own
/// optimizer. Besides `states`, every algorithm keeps the number of updates of each parameter.
struct Algorithm {
  std::string name;          ///< "AdamW"
  std::string options_name;  ///< name of the options' type, for messages: "AdamWOptions"
  /// Returns true if the options are of the type `options_name`. The functions below get only such
  /// options.
  bool (*accepts)(const torch::optim::OptimizerOptions& options);
  std::vector<HyperParameterField> hyper_parameters;
  std::vector<StateField> states;
  /// A text of other settings that must be equal on all ranks; "" for none.
  std::string note = "";
  /// Returns what is wrong with a combination of values, each of which is in range: "<name>: got X,
  /// expected Y"; "" if nothing. Null: all combinations are allowed.
  std::function<std::string(const torch::optim::OptimizerOptions& options)> conflict = nullptr;
  /// Tests, once per engine, whether updates with `options` do what the library relies on. Returns
  /// what is wrong; "" if nothing. Null for the library's own algorithms.
  std::function<std::string(const torch::optim::OptimizerOptions& options)> probe = nullptr;

  /// Makes the host's ElementUpdate (element_update.h) for a table of `parameters` parameters.
  std::function<std::unique_ptr<ElementUpdate>(size_t parameters)> make_update = nullptr;
  /// Makes the WholeUpdate that follows the ElementUpdate: Note [Whole tensors] in whole_update.h.
  /// Null: the algorithm is elementwise.
  std::function<std::unique_ptr<WholeUpdate>()> make_whole = nullptr;
  /// Returns the states that the owner of a parameter of `sizes` keeps whole. May throw c10::Error.
  /// Null: there are no such states.
  std::function<std::vector<WholeState>(const torch::optim::OptimizerOptions& options,
                                        at::IntArrayRef sizes)>
      whole_states = nullptr;
  /// The number of dimensions that parameters must have; 0: any number.
  int64_t dimensions = 0;
  /// The elementwise update on devices; nullopt: there are no kernels for it.
  std::optional<DeviceRule> on_device = std::nullopt;

  /// Returns what is out of range in `options`, one line each "[optim] <subject>: <name>: got X,
  /// expected Y"; none if all is well.
  std::vector<std::string> problems_of(const std::string& subject,
                                       const torch::optim::OptimizerOptions& options) const;
  /// Returns "AdamW lr 0.001 beta1 0.9 ..." with all digits and the note, so that equal text means
  /// equal options.
  std::string line_of(const torch::optim::OptimizerOptions& options) const;
};

/// Returns true if `options` are of type `Type`. For Algorithm::accepts.
template <typename Type>
bool has_type(const torch::optim::OptimizerOptions& options) {
  return dynamic_cast<const Type*>(&options) != nullptr;
}

}  // namespace tessera::internal

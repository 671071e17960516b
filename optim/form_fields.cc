#include "tessera/optim/form_fields.h"

#include <limits>

namespace tessera::internal {

std::vector<HyperParameterField> fields_of(const ErasedForm& form) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<HyperParameterField> fields = {
      {.name = "lr",
       .read = [](const torch::optim::OptimizerOptions& options) { return options.get_lr(); },
       .write = [](torch::optim::OptimizerOptions& options,
                   double value) { options.set_lr(value); },
       .end = kInfinity}};
  for (const auto& number : form.numbers) {
    fields.push_back({.name = number.name,
                      .read = number.read,
                      .write = number.write,
                      .end = number.end,
                      .begin = number.begin,
                      .is_switch = number.is_switch,
                      .is_whole = number.is_whole,
                      .chooses_states = number.chooses_states});
  }
  return fields;
}

}  // namespace tessera::internal

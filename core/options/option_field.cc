#include "tessera/core/options/option_field.h"

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/strip.h>
#include <c10/util/Exception.h>

#include "tessera/core/numbers/number_text.h"
#include "tessera/core/options/resolved_options.h"

namespace tessera::internal {
namespace {

using AppliesTo = OptionField::AppliesTo;

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(int value) { return absl::StrCat(value); }
std::string text_of(double value) { return number_text(value); }
std::string text_of(Strategy value) { return std::string(to_string(value)); }
std::string text_of(Offload value) { return std::string(to_string(value)); }
std::string text_of(NonFinite value) { return value == NonFinite::kStop ? "stop" : "skip"; }
std::string text_of(Reproducible value) { return std::string(to_string(value)); }
std::string text_of(BufferSync value) { return std::string(to_string(value)); }
std::string text_of(const Degrees& value) { return to_string(value); }
std::string text_of(const Precision& value) {
  return std::string(absl::StripPrefix(to_string(value), "precision "));
}
std::string text_of(const WrapPolicy& value) { return value.choose ? value.name : "unset"; }
std::string text_of(const std::map<std::string, double>& value) {
  return absl::StrJoin(value, " ", [](std::string* text, const auto& entry) {
    absl::StrAppend(text, "'", entry.first, "' ", number_text(entry.second));
  });
}
std::string text_of(const std::vector<int64_t>& value) {
  return value.empty() ? "unset" : absl::StrJoin(value, " ");
}
std::string text_of(const LossScale& value) {
  return absl::StrCat(number_text(value.initial), " ", number_text(value.growth), " ",
                      number_text(value.backoff), " ", value.growth_interval);
}
std::string text_of(const WeightAverage& value) {
  return absl::StrCat(
      value.decay.has_value() ? absl::StrCat("decay ", number_text(*value.decay)) : "mean",
      " from step ", value.start_step, ", every ", value.every);
}
template <typename Answer, typename Question>
std::string text_of(const std::function<Answer(Question)>& value) {
  return value ? "set" : "unset";
}
template <typename Value>
std::string text_of(const std::optional<Value>& value) {
  return value.has_value() ? text_of(*value) : "unset";
}

template <auto kField>
constexpr OptionField field(const char* name, AppliesTo applies_to = AppliesTo::kAll) {
  return {name, applies_to, [](const Options& options) { return text_of(options.*kField); }};
}

// A new option is a field of Options, a row here and, if a strategy does not decide where it means
// something, a check in options.cc.
constexpr OptionField kFields[] = {
    field<&Options::strategy>("strategy"),
    field<&Options::degrees>("degrees"),
    field<&Options::wrap>("wrap", AppliesTo::kSplitParameters),
    field<&Options::reshard_after_forward>("reshard_after_forward", AppliesTo::kSplitParameters),
    // What is left to train is compared.
    {.name = "ignores",
     .applies_to = AppliesTo::kAll,
     .text = [](const Options& options) { return text_of(options.ignores); },
     .is_compared = false},
    field<&Options::max_grad_norm>("max_grad_norm"),
    field<&Options::grad_norm_type>("grad_norm_type"),
    field<&Options::max_grad_norm_by_group>("max_grad_norm_by_group"),
    field<&Options::max_grad_value>("max_grad_value"),
    field<&Options::gradient_divide_factor>("gradient_divide_factor"),
    field<&Options::reproducible>("reproducible"),
    field<&Options::precision>("precision"),
    field<&Options::loss_scale>("loss_scale"),
    field<&Options::on_non_finite>("on_non_finite"),
    field<&Options::ask_non_finite>("ask_non_finite"),
    field<&Options::average>("average"),
    field<&Options::buffers>("buffers"),
    // What is left to make equal is compared.
    {.name = "ignores_buffers",
     .applies_to = AppliesTo::kAll,
     .text = [](const Options& options) { return text_of(options.ignores_buffers); },
     .is_compared = false},
    field<&Options::requires_sync_batch_norm>("requires_sync_batch_norm"),
    field<&Options::share_parameters>("share_parameters", AppliesTo::kSharedParameters),
    field<&Options::optimizer_in_backward>("optimizer_in_backward"),
    field<&Options::bucket_bytes>("bucket_bytes", AppliesTo::kWholeParameters),
    field<&Options::reorder_reductions>("reorder_reductions"),
    field<&Options::units_in_reduction>("units_in_reduction", AppliesTo::kPooledGradients),
    field<&Options::prefetch>("prefetch", AppliesTo::kSplitParameters),
    field<&Options::keep_freed_memory>("keep_freed_memory"),
    field<&Options::offload>("offload"),
    field<&Options::asynchronous_step>("asynchronous_step"),
    field<&Options::cuda_graphs>("cuda_graphs"),
    field<&Options::poison_freed>("poison_freed"),
    field<&Options::free_eagerly>("free_eagerly", AppliesTo::kSplitParameters),
    field<&Options::fixed_unsharded_buffers>("fixed_unsharded_buffers",
                                             AppliesTo::kSplitParameters),
    field<&Options::trace>("trace"),
};

}  // namespace

std::string ignored(const OptionField& field, const Options& options, const Degrees& degrees,
                    const std::string& strategy) {
  const bool is_split = degrees.parameters > 1;
  switch (field.applies_to) {
    case AppliesTo::kAll:
      return "";
    case AppliesTo::kSplitParameters:
      if (is_split) return "";
      return absl::StrCat("is set, but strategy ", strategy,
                          " does not split parameters and would ignore it; leave it out, or use a "
                          "strategy that does (zero3)");
    case AppliesTo::kWholeParameters:
      if (!is_split) return "";
      return absl::StrCat("is set, but strategy ", strategy,
                          " splits parameters, forms units by wrap and would ignore it; leave it "
                          "out, or use a strategy that keeps parameters whole (ddp, zero1, zero2)");
    case AppliesTo::kSharedParameters:
      if (can_share_parameters(degrees)) return "";
      return absl::StrCat("got ", field.text(options), ", but strategy ", strategy,
                          " has nothing that ranks could share and would ignore it; leave it out");
    case AppliesTo::kPooledGradients:
      if (!keeps_gradient_buffers(degrees)) return "";
      return absl::StrCat("is set, but strategy ", strategy,
                          " has a gradient buffer for each unit and would ignore it; leave it out");
  }
  TORCH_INTERNAL_ASSERT(false, "applies to ", static_cast<int>(field.applies_to));
}

std::span<const OptionField> option_fields() { return kFields; }

std::vector<std::string> lines(const Options& options) {
  std::vector<std::string> lines;
  for (const OptionField& field : kFields) {
    if (field.is_compared) lines.push_back(absl::StrCat(field.name, " ", field.text(options)));
  }
  return lines;
}

}  // namespace tessera::internal

#include "tessera/option_list.h"

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/options/option_table.h"

namespace tessera {
using namespace internal;

namespace {

std::string text_of(OptionField::Strategies strategies) {
  using Strategies = OptionField::Strategies;
  switch (strategies) {
    case Strategies::kAll:
      return "all";
    case Strategies::kSplitParameters:
      return "zero3; hybrid with p > 1";
    case Strategies::kWholeParameters:
      return "ddp, zero1, zero2; hybrid with p = 1";
    case Strategies::kSharedParameters:
      return "zero1, zero2, zero3; hybrid with o > 1 and p = 1 or p = o";
    case Strategies::kPooledGradients:
      return "all but zero1; hybrid unless g = 1 < o";
    case Strategies::kOwnSlices:
      return "zero2, zero3; hybrid with g = o = N";
  }
  TORCH_INTERNAL_ASSERT(false);
}

std::string text_of(OptionField::Devices devices) {
  using Devices = OptionField::Devices;
  switch (devices) {
    case Devices::kAll:
      return "all";
    case Devices::kCpu:
      return "CPU";
    case Devices::kGpu:
      return "GPU";
    case Devices::kHostUpdates:
      return "CPU; GPU with offload";
  }
  TORCH_INTERNAL_ASSERT(false);
}

std::vector<OptionDescription> describe_all() {
  const Options defaults;
  std::vector<OptionDescription> list;
  for (const OptionField& field : option_fields()) {
    list.push_back({.name = field.name,
                    .doc = field.doc,
                    .allowed = field.allowed,
                    .unset = field.text(defaults),
                    .strategies = text_of(field.strategies),
                    .devices = text_of(field.devices),
                    .has_text = field.set != nullptr});
  }
  return list;
}

absl::string_view to_absl(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

const std::vector<OptionDescription>& option_list() {
  static const std::vector<OptionDescription> list = describe_all();
  return list;
}

const std::string& option_doc(std::string_view name) {
  for (const OptionDescription& one : option_list()) {
    if (one.name == name) return one.doc;
  }
  TORCH_CHECK(false, "[options] option_doc: got '", name,
              "', expected a field of Options; option_list() has all");
}

absl::Status set_option(Options& options, std::string_view name, std::string_view text) {
  for (const OptionField& field : option_fields()) {
    if (field.name != name) continue;
    const std::string wrong = field.set == nullptr
                                  ? std::string("got a text, but only code can set it")
                                  : field.set(options, std::string(text));
    if (wrong.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("[options] ", to_absl(name), ": ", wrong));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("[options] got the name '", to_absl(name),
                   "', expected a field of Options; option_list() has all"));
}

}  // namespace tessera

#include "tessera/zero/engine/misuse_check.h"

#include <optional>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/process/error_text.h"

namespace tessera::internal {

std::string MisuseCheck::find(const char* call) const {
  if (access_.has_open_scope()) {
    return absl::StrCat(call,
                        " was called while a full_parameters() or gather() scope is open; end the "
                        "scope first");
  }
  FlatParameters::Finding finding;
  try {
    finding = store_.inspect();
  } catch (const c10::Error& error) {
    return error_text(error);
  }
  if (finding.violation != FlatParameters::Violation::kNone) {
    return describe(finding.violation, table_[finding.parameter].name);
  }
  if (const std::optional<size_t> replaced = dot_grads_.replaced()) {
    return absl::StrCat(
        "[grad] '", table_[*replaced].name,
        "': .grad was assigned outside the engine, which would not use it; write "
        "into the tensor that is there (ddp), or clear it (.mutable_grad().reset())");
  }
  return optimizer_.groups().problem();
}

std::string MisuseCheck::written() const {
  const FlatParameters::Finding finding = store_.flat().inspect();
  // Reports writes only. If a parameter has left its unit, the step reports it.
  if (finding.violation != FlatParameters::Violation::kWritten) return "";
  return describe(finding.violation, table_[finding.parameter].name);
}

std::string MisuseCheck::before_step() const {
  std::string found = find("step()");
  if (!found.empty() || early_update_ == nullptr || !early_update_->has_begun()) return found;
  if (const DotGradViews::Cleared cleared = dot_grads_.cleared(); !cleared.parameters.empty()) {
    return absl::StrCat(
        "[grad] '", table_[cleared.parameters.front()].name,
        "': .grad was cleared after backward had applied it (Options::optimizer_in_backward); "
        "clear gradients before backward or not at all, step() does it");
  }
  return early_update_->problem();
}

std::string MisuseCheck::before_updating_backward(bool in_no_sync) const {
  if (early_update_->has_begun()) {
    return "[grad] backward was called a second time before step(), but the first has updated "
           "parameters (Options::optimizer_in_backward); call step() after each backward";
  }
  if (in_no_sync) {
    return "[grad] backward was called inside no_sync(), but it has to update parameters "
           "(Options::optimizer_in_backward); leave one of the two out";
  }
  return find("backward");
}

}  // namespace tessera::internal

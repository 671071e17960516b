#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>

#include "tessera/options.h"

namespace tessera {

/// A description of one field of Options, for programs that show it to people: in the help of a
/// flag, in a form, on a page.
struct OptionDescription {
  std::string name;
  std::string doc;         ///< what the field does: a sentence without a subject
  std::string allowed;     ///< the values that the field takes
  std::string unset;       ///< the default, as text
  std::string strategies;  ///< strategies under which the field has a meaning; others refuse it
  std::string devices;     ///< devices on which the field has a meaning; others refuse it
  bool has_text = false;   ///< true if set_option() can set it
};

/// Returns all fields of Options, in their order. docs/options.md is this list. Local.
const std::vector<OptionDescription>& option_list();

/// Returns OptionDescription::doc of the field `name`. Throws c10::Error if there is no such field.
/// Local.
const std::string& option_doc(std::string_view name);

/// Sets the field `name` from text, as a flag gives it: "true", "0.5", "zero3", "1024 2048" (a
/// list), "optimizer" (an enumerator, as its to_string() says). If the name or the text is wrong,
/// or only code can set the field, returns InvalidArgument that says what is allowed, and changes
/// nothing. Does not check whether the value is in range: see validate(). Local.
absl::Status set_option(Options& options, std::string_view name, std::string_view text);

}  // namespace tessera

#include "tessera/checkpoint/engine/unsavable.h"

#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/checkpoint/engine/shard_sink.h"
#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/format/entry_form.h"
#include "tessera/checkpoint/format/utf8.h"

namespace tessera::internal {

std::string unsavable(Engine& engine, const std::map<std::string, std::string>& notes) {
  std::vector<std::string> lines;
  for (const StateOutline& entry : engine.state_entries()) {
    std::string wrong = name_problem(entry.name);
    if (wrong.empty()) wrong = form_of(entry.form).problem();
    if (wrong.empty()) continue;
    lines.push_back(absl::StrCat("entry '", printable(entry.name), "' cannot be saved: ", wrong,
                                 "; rename or convert it, or, if it is a buffer, name it in "
                                 "Options::ignores_buffers"));
  }
  for (const auto& [name, text] : notes) {
    std::string wrong = name_problem(name);
    if (wrong.empty() && !is_utf8(text)) {
      wrong = absl::StrCat("got the text '", printable(text), "', expected UTF-8");
    }
    if (wrong.empty()) continue;
    lines.push_back(absl::StrCat("note '", printable(name), "' cannot be saved: ", wrong));
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace tessera::internal

#include "tessera/checkpoint/format/utf8.h"

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/format/json.h"

namespace tessera::internal {

std::string utf8_problem(std::string_view text) {
  if (json_text(Json(text)).ok()) return "";
  return absl::StrCat("got the text '", printable(text), "', expected UTF-8");
}

}  // namespace tessera::internal

#include "tessera/errors.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/unwinding.h"

namespace tessera {
namespace {

std::string message(const CommErrorContext& context, const std::string& cause) {
  std::string text = "[comm] ";
  if (!context.op.empty()) absl::StrAppend(&text, context.op);
  if (context.sequence >= 0) absl::StrAppend(&text, " #", context.sequence);
  if (!context.tag.empty()) absl::StrAppend(&text, " '", context.tag, "'");
  if (!context.group.empty()) absl::StrAppend(&text, " on group '", context.group, "'");
  if (context.rank >= 0) absl::StrAppend(&text, ", rank ", context.rank);
  return absl::StrCat(text, ": ", cause);
}

}  // namespace

CommError::CommError(CommErrorContext context, std::string cause)
    : std::runtime_error(message(context, cause)),
      context_(std::move(context)),
      cause_(std::move(cause)) {}

ErrorOnAllRanks::ErrorOnAllRanks(std::string text)
    : c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, std::move(text)) {
  internal::CommonErrorScope::note_error();
}

}  // namespace tessera

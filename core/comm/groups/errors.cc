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

namespace internal {

static thread_local CommonErrorScope* innermost_scope = nullptr;
static thread_local std::optional<std::chrono::steady_clock::time_point> unwinding_began;

Unwinding::Unwinding() { unwinding_began.reset(); }

bool Unwinding::is_by_own_error() const {
  const bool is_common = innermost_scope != nullptr && innermost_scope->has_error_;
  if (is_common || std::uncaught_exceptions() <= uncaught_at_start_) return false;
  if (!unwinding_began) unwinding_began = std::chrono::steady_clock::now();
  return true;
}

std::optional<std::chrono::steady_clock::time_point> Unwinding::began() { return unwinding_began; }

CommonErrorScope::CommonErrorScope() : outer_(innermost_scope) { innermost_scope = this; }

CommonErrorScope::~CommonErrorScope() { innermost_scope = outer_; }

}  // namespace internal

CommError::CommError(CommErrorContext context, std::string cause)
    : std::runtime_error(message(context, cause)),
      context_(std::move(context)),
      cause_(std::move(cause)) {}

ErrorOnAllRanks::ErrorOnAllRanks(std::string text)
    : c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, std::move(text)) {
  if (internal::innermost_scope != nullptr) internal::innermost_scope->has_error_ = true;
}

RankError::RankError(Ending ending, const std::string& text)
    : std::runtime_error(text), ending_(std::move(ending)) {}

}  // namespace tessera

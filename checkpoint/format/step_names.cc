#include "tessera/checkpoint/format/step_names.h"

#include <random>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

namespace tessera::internal {
namespace {

constexpr std::string_view kStep = "step-";
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kTrash = ".trash-";
constexpr size_t kNonceDigits = 32;

/// Whether `name` is "step-<N><mark><nonce>".
bool is_marked_step(std::string_view name, std::string_view mark) {
  const size_t at = name.find(mark);
  return at != std::string_view::npos && step_of(name.substr(0, at)).has_value() &&
         is_nonce(name.substr(at + mark.size()));
}

}  // namespace

std::string step_name(int64_t step) { return absl::StrCat("step-", step); }

std::string temporary_step_name(int64_t step, std::string_view nonce) {
  return absl::StrCat(step_name(step), ".tmp-", std::string(nonce));
}

std::string trash_step_name(int64_t step, std::string_view nonce) {
  return absl::StrCat(step_name(step), ".trash-", std::string(nonce));
}

std::string rank_file_name(int64_t rank, int64_t world) {
  return absl::StrFormat("rank-%05d-of-%05d.safetensors", rank, world);
}

std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  const std::string digits(name.substr(kStep.size()));
  int64_t step = 0;
  if (!absl::SimpleAtoi(digits, &step) || step < 0 || absl::StrCat(step) != digits) {
    return std::nullopt;
  }
  return step;
}

bool is_temporary_step(std::string_view name) { return is_marked_step(name, kTemporary); }
bool is_trash_step(std::string_view name) { return is_marked_step(name, kTrash); }

std::string draw_nonce() {
  std::random_device device;  // the kernel's generator
  std::string nonce;
  while (nonce.size() < kNonceDigits) nonce += absl::StrFormat("%08x", device());
  return nonce;
}

bool is_nonce(std::string_view text) {
  return text.size() == kNonceDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace tessera::internal

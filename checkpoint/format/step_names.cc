#include "tessera/checkpoint/format/step_names.h"

#include <algorithm>
#include <random>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

namespace tessera::internal {
namespace {

constexpr std::string_view kStep = "step-";
constexpr size_t kNonceDigits = 32;

}  // namespace

std::string step_name(int64_t step) { return absl::StrCat("step-", step); }

std::string marked_step_name(int64_t step, std::string_view mark, std::string_view nonce) {
  return absl::StrCat(step_name(step), ".", std::string(mark), "-", std::string(nonce));
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

std::optional<std::string_view> step_mark_of(std::string_view name) {
  const size_t dot = std::min(name.find('.'), name.size());
  if (!step_of(name.substr(0, dot)).has_value()) return std::nullopt;
  if (dot == name.size()) return "";
  const size_t dash = std::min(name.find('-', dot), name.size() - 1);
  if (!is_nonce(name.substr(dash + 1))) return std::nullopt;
  return name.substr(dot + 1, dash - dot - 1);
}

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

#include "tessera/core/comm/nccl/agreement.h"

#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace tessera::internal::nccl {
namespace {

constexpr const char* kFailure = "nccl/failure";
constexpr const char* kInquiry = "nccl/inquiry";

std::string answer_key(int rank) { return absl::StrCat("nccl/answer/", rank); }

std::string left_key(int rank, const std::string& group) {
  return absl::StrCat("nccl/left/", group, "/", rank);
}

Agreement::Inquiry parse(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 2));
  Agreement::Inquiry inquiry;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &inquiry.asker) ||
      !absl::SimpleAtoi(parts[1], &inquiry.sequence)) {
    return {};
  }
  inquiry.group = parts[2];
  return inquiry;
}

}  // namespace

Agreement::Agreement(c10::intrusive_ptr<c10d::Store> store, int rank)
    : store_(std::move(store)), rank_(rank) {}

Agreement::~Agreement() = default;

std::string Agreement::publish(const std::string& cause) {
  return store_->compareSet(kFailure, std::string(), cause);
}

std::optional<std::string> Agreement::failure() { return look(kFailure); }

Agreement::Inquiry Agreement::ask(const std::string& group, int64_t sequence) {
  return parse(
      store_->compareSet(kInquiry, std::string(), absl::StrCat(rank_, " ", sequence, " ", group)));
}

std::optional<Agreement::Inquiry> Agreement::inquiry() {
  const auto text = look(kInquiry);
  if (!text) return std::nullopt;
  return parse(*text);
}

void Agreement::answer(const std::string& report) { put(answer_key(rank_), report); }

std::optional<std::string> Agreement::answer_of(int rank, const std::string& group) {
  if (auto left = look(left_key(rank, group))) return left;
  return look(answer_key(rank));
}

void Agreement::say_left(const std::string& group, const std::string& report) {
  put(left_key(rank_, group), report);
}

void Agreement::put(const std::string& key, const std::string& text) { store_->set(key, text); }

bool Agreement::has(const std::vector<std::string>& keys) { return store_->check(keys); }

std::string Agreement::get(const std::string& key) {
  const std::vector<uint8_t> bytes = store_->get(key);
  return std::string(bytes.begin(), bytes.end());
}

void Agreement::erase(const std::string& key) { store_->deleteKey(key); }

std::optional<std::string> Agreement::look(const std::string& key) {
  // get() of a key that is not there would block, and others with it.
  if (!store_->check({key})) return std::nullopt;
  return get(key);
}

}  // namespace tessera::internal::nccl

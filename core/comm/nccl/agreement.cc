#include "tessera/core/comm/nccl/agreement.h"

#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

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

Agreement::Agreement(std::shared_ptr<SharedTable> table, int rank)
    : table_(std::move(table)), rank_(rank) {}

std::string Agreement::publish(const std::string& cause) {
  return table_->set_first(kFailure, cause);
}

std::optional<std::string> Agreement::failure() { return table_->get(kFailure); }

Agreement::Inquiry Agreement::ask(const std::string& group, int64_t sequence) {
  return parse(table_->set_first(kInquiry, absl::StrCat(rank_, " ", sequence, " ", group)));
}

std::optional<Agreement::Inquiry> Agreement::inquiry() {
  const auto text = table_->get(kInquiry);
  if (!text) return std::nullopt;
  return parse(*text);
}

void Agreement::answer(const std::string& report) { table_->set(answer_key(rank_), report); }

std::optional<std::string> Agreement::answer_of(int rank, const std::string& group) {
  if (auto left = table_->get(left_key(rank, group))) return left;
  return table_->get(answer_key(rank));
}

void Agreement::say_left(const std::string& group, const std::string& report) {
  table_->set(left_key(rank_, group), report);
}

}  // namespace tessera::internal::nccl

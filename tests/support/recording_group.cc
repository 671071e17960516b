#include "tessera/tests/support/recording_group.h"
#include "tessera/tests/support/watched_window.h"

#include <stdexcept>
#include <utility>

#include <absl/strings/str_cat.h>

namespace tessera::internal::testing {

void Recording::add(RecordedCall call) {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_.push_back(std::move(call));
}

std::vector<RecordedCall> Recording::calls() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return calls_;
}

void Recording::clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_.clear();
}

double Recording::sent_bytes(std::string_view op) const {
  double sum = 0;
  for (const RecordedCall& call : calls()) {
    if (op.empty() || call.op == op) sum += call.sent_bytes;
  }
  return sum;
}

int64_t Recording::count(std::string_view op) const {
  int64_t number = 0;
  for (const RecordedCall& call : calls()) number += op.empty() || call.op == op;
  return number;
}

std::vector<std::string> Recording::lines() const {
  std::vector<std::string> lines;
  for (const RecordedCall& call : calls()) {
    lines.push_back(absl::StrCat(call.op, " ", call.tag, " ", call.tensor_bytes));
  }
  return lines;
}

void Recording::fail_call(int64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  until_failure_ = number;
}

void Recording::maybe_fail(std::string_view op, std::string_view tag) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (until_failure_ < 0 || until_failure_-- > 0) return;
  throw std::runtime_error(absl::StrCat("recording group: call ", calls_.size(), " (",
                                        std::string(op), " '", std::string(tag),
                                        "') was made to fail"));
}

RecordingGroup::RecordingGroup(std::shared_ptr<ProcessGroup> inner,
                               std::shared_ptr<Recording> recording)
    : ForwardingGroup(std::move(inner)), recording_(std::move(recording)) {}

void RecordingGroup::record(std::string_view op, std::string_view tag, int64_t tensor_bytes,
                            double factor) {
  recording_->maybe_fail(op, tag);
  recording_->add({std::string(op), std::string(tag), std::string(name()), tensor_bytes,
                   factor * static_cast<double>(tensor_bytes)});
}

std::unique_ptr<Window> RecordingGroup::make_window(const at::Tensor& own, std::string_view name) {
  record("window", name, static_cast<int64_t>(own.nbytes()), 0.0);
  const auto before = [recording = recording_, group = std::string(this->name()),
                       own_rank = rank()](int from, const at::Tensor& to, std::string_view tag) {
    recording->maybe_fail("read", tag);
    const auto bytes = static_cast<int64_t>(to.nbytes());
    recording->add({"read", std::string(tag), group, bytes,
                    from == own_rank ? 0.0 : static_cast<double>(bytes)});
  };
  return std::make_unique<WatchedWindow>(inner_->make_window(own, name), before);
}

std::shared_ptr<Work> RecordingGroup::run(const Collective& collective) {
  const double others = 1.0 * (size() - 1) / size();
  double factor = 0;
  switch (collective.op) {
    case Op::kAllReduce:
      factor = 2.0 * others;
      break;
    case Op::kReduceScatter:
    case Op::kAllGather:
      factor = others;
      break;
    case Op::kBroadcast:
      factor = rank() == collective.peer && size() > 1 ? 1.0 : 0.0;
      break;
    case Op::kReduce:
      factor = rank() != collective.peer ? 1.0 : 0.0;
      break;
    default:
      break;
  }
  const at::Tensor& whole =
      collective.op == Op::kReduceScatter ? collective.input : collective.output;
  record(to_string(collective.op), collective.tag,
         whole.defined() ? static_cast<int64_t>(whole.nbytes()) : 0, factor);
  return inner_->run(collective);
}

std::shared_ptr<ProcessGroup> RecordingGroup::wrap(std::shared_ptr<ProcessGroup> inner) {
  return std::make_shared<RecordingGroup>(std::move(inner), recording_);
}

}  // namespace tessera::internal::testing

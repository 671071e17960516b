#include "tessera/core/comm/nccl/control_channel.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/nccl/meeting.h"

namespace tessera::internal::nccl {

ControlChannel::ControlChannel(std::shared_ptr<World> world, int rank, std::string what)
    : world_(std::move(world)), rank_(rank), what_(std::move(what)) {}

std::vector<std::string> ControlChannel::exchange(Pending& pending, std::string_view bytes) {
  start(pending, bytes);
  return finish(pending);
}

void ControlChannel::start(Pending& pending, std::string_view bytes) {
  // The calls travel along, so that comparing them costs nothing.
  own_ = pending.call().text();
  own_call_length_ = own_.size();
  own_.append(1, '\0').append(bytes);
  if (pending.progress().world_ranks().size() > 1) {
    keys_.push_back(give(*world_, pending, rank_, what_, own_));
  }
  is_open_ = true;
}

std::vector<std::string> ControlChannel::finish(Pending& pending) {
  is_open_ = false;
  const Progress& progress = pending.progress();
  if (progress.world_ranks().size() == 1) return {own_.substr(own_call_length_ + 1)};
  std::vector<std::string> parts = take(*world_, pending, what_);
  // All have written this one, so all are through with the ones before.
  while (keys_.size() > 1) {
    world_->agreement().table().erase(keys_.front());
    keys_.erase(keys_.begin());
  }

  const auto call_of = [&](size_t rank) {
    return absl::string_view(parts[rank].c_str());  // up to the zero
  };
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    if (call_of(rank) == call_of(0)) continue;
    pending.fail(absl::StrCat(progress.name_of(static_cast<int>(rank)), " called ", call_of(rank),
                              " where ", progress.name_of(0), " called ", call_of(0)));
  }
  for (std::string& part : parts) part.erase(0, own_call_length_ + 1);
  return parts;
}

}  // namespace tessera::internal::nccl

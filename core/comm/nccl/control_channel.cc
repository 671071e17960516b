#include "tessera/core/comm/nccl/control_channel.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/nccl/meeting.h"

namespace tessera::nccl {

ControlChannel::ControlChannel(std::shared_ptr<World> world, int rank, std::string what)
    : world_(std::move(world)), rank_(rank), what_(std::move(what)) {}

std::vector<std::string> ControlChannel::exchange(Pending& pending, std::string_view bytes) {
  const Progress& progress = pending.progress();
  const std::string own_key = exchange_key(progress, pending.call().sequence, what_, rank_);
  // The calls travel along, so that comparing them costs nothing.
  std::string own = pending.call().text();
  const size_t own_length = own.size();
  own.append(1, '\0').append(bytes);
  std::vector<std::string> parts = nccl::exchange(*world_, pending, rank_, what_, own);
  // All have written this one, so all have read the one before.
  if (!last_key_.empty()) world_->agreement().erase(last_key_);
  last_key_ = own_key;

  const auto call_of = [&](size_t rank) {
    return absl::string_view(parts[rank].c_str());  // up to the zero
  };
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    if (call_of(rank) == call_of(0)) continue;
    pending.fail(absl::StrCat(progress.name_of(static_cast<int>(rank)), " called ", call_of(rank),
                              " where ", progress.name_of(0), " called ", call_of(0)));
  }
  for (std::string& part : parts) part.erase(0, own_length + 1);
  return parts;
}

}  // namespace tessera::nccl

#include "tessera/core/comm/meeting/meeting.h"

#include <utility>

#include "tessera/core/comm/meeting/served_table.h"
#include "tessera/time_out.h"

namespace tessera::internal {

Meeting::Meeting(Place& place, Transport& transport, const MeetingOptions& options) {
  const Deadline end = std::chrono::steady_clock::now() + bounded(options.timeout);
  side_ = arrive(place, options, end);
  if (auto* const server = std::get_if<std::unique_ptr<Server>>(&side_)) {
    admit_all(**server, place.text(), transport, options, end);
  } else {
    attend(*std::get<std::unique_ptr<Connection>>(side_), transport, options, end);
  }
}

std::unique_ptr<SharedTable> Meeting::make_table(std::chrono::milliseconds timeout) && {
  if (auto* const server = std::get_if<std::unique_ptr<Server>>(&side_)) {
    return std::make_unique<ServedTable>(std::move(*server));
  }
  auto& connection = std::get<std::unique_ptr<Connection>>(side_);
  return std::make_unique<RemoteTable>(std::move(connection), timeout);
}

}  // namespace tessera::internal

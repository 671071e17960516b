#pragma once

#include <string>
#include <string_view>

#include "tessera/core/comm/meeting/mac_key.h"

namespace tessera::internal {

/// What a rank must know to be admitted to its job's meeting.
struct Credentials {
  std::string token = {};    ///< the job's secret; "" for none
  std::string run_id = {};   ///< of the job, as its launcher calls it
  std::string attempt = {};  ///< how often the launcher has started it again

  /// The key of a connection whose sides have these nonces.
  MacKey connection_key(std::string_view member_nonce, std::string_view server_nonce) const;
};

}  // namespace tessera::internal

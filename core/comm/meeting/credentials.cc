#include "tessera/core/comm/meeting/credentials.h"

#include "tessera/core/comm/meeting/protocol.h"

namespace tessera::internal {

MacKey Credentials::connection_key(std::string_view member_nonce,
                                   std::string_view server_nonce) const {
  return MacKey::of_token(token).derive(
      {kMeetingProtocol, member_nonce, server_nonce, run_id, attempt});
}

}  // namespace tessera::internal

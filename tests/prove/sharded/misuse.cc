#include "tessera/tests/prove/sharded/misuse.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <map>
#include <string>

#include <c10/util/Exception.h>

namespace prove {

Misuse parse_misuse(std::string_view text) {
  static const std::map<std::string_view, Misuse> names = {{"none", Misuse::kNone},
                                                           {"die", Misuse::kDie},
                                                           {"other_call", Misuse::kOtherCall},
                                                           {"nan", Misuse::kNan},
                                                           {"listen", Misuse::kListen}};
  const auto it = names.find(text);
  TORCH_CHECK(it != names.end(), "[prove] --misuse: got '", std::string(text),
              "', expected none, die, other_call, nan or listen");
  return it->second;
}

void open_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  TORCH_CHECK(socket >= 0 && bind(socket, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0 &&
                  listen(socket, 1) == 0,
              "[prove] cannot open a port");
}

}  // namespace prove

#pragma once

#include <functional>
#include <memory>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/core/comm/meeting/store_place.h"

namespace tessera::internal {

/// Local. A key of a c10d store that the program gives. A call that does not return by its deadline
/// is left behind in a thread of its own, with a reference to the store.
std::unique_ptr<Board> board_of(c10::intrusive_ptr<c10d::Store> store);

/// Local. A key of the store of torchrun's agent, which is connected to at the first call.
std::unique_ptr<Board> board_of_agent(const std::string& host, int port, const std::string& key);

}  // namespace tessera::internal

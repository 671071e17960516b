#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/flight_recorder/flight_ring.h"

namespace tessera::internal {

/// What is known of one rank: its last calls, and what its process does.
struct RankFlight {
  int rank = 0;
  int pid = 0;             ///< 0: unknown
  std::string host = {};   ///< "": this one, or unknown
  std::string state = {};  ///< "runs (sleeps)", "is stopped (SIGSTOP or a debugger)", "is gone"
  uint64_t begun = 0;
  std::vector<FlightRecord> records = {};  ///< the oldest first
};

/// "runs (computes)", "runs (sleeps)", "is stopped (SIGSTOP or a debugger)" or "is gone"; of this
/// process "is a thread of this process".
std::string process_state(int pid);

/// All ranks in one text: the cause, then the last calls of each. `now_ns`: when it is written.
std::string merged_text(const std::vector<RankFlight>& ranks, std::string_view cause,
                        int64_t now_ns);

/// The directory that TESSERA_FLIGHT_DUMP names; "": nothing is written.
std::string flight_dump_directory();

/// Local. Writes merged_text() into the directory, if one is named; makes it if it is not there. As
/// <name>-<rank>-<pid>.txt, and says so on stderr. Never throws: what cannot be written is said
/// there, too.
void write_flight_dump(const std::string& directory, int rank, const std::vector<RankFlight>& ranks,
                       std::string_view cause, std::string_view name = "flight-rank") noexcept;

/// Of a wait that is long: "<call>: <waiter> has waited 30001 ms for rank 2 (pid 812), which
/// <state>, last seen in <call>, over 30.2 s ago; and for ...".
std::string wait_report(std::string_view call, std::string_view waiter,
                        std::chrono::milliseconds waited, const std::vector<RankFlight>& missing);

}  // namespace tessera::internal

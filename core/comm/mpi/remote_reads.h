#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "tessera/core/comm/mpi/call.h"
#include "tessera/core/comm/mpi/envelope.h"
#include "tessera/core/comm/mpi/link.h"
#include "tessera/core/comm/mpi/window_server.h"

namespace tessera::internal::mpi {

class Member;

/// The reader's side of the windows of one group: what this rank has asked others for. Note
/// [Windows over MPI]. Used by the progress thread alone.
class RemoteReads {
 public:
  explicit RemoteReads(Member& member) : member_(member) {}

  /// Asks rank `owner`; the data comes to the output of `call`.
  void start(const std::shared_ptr<Call>& call, int owner, const ReadRequest& request);
  /// A kAnswer or kRefused.
  void take(int owner, const Envelope& answer);
  bool advance(Call::Clock::time_point now);
  bool is_busy() const { return !reads_.empty(); }
  /// `owner` has left the world: it answers no more.
  void note_ended(int owner);
  void end_all(const std::string& cause);

 private:
  struct Read {
    std::shared_ptr<Member> member;
    std::shared_ptr<Call> call;
    at::Tensor to;  // kept after the call has failed
    int owner;
    std::unique_ptr<Exchange> exchange;  // once the answer is there
  };

  std::string left(int owner) const;
  void time_out(const Read& read);

  Member& member_;
  std::map<int64_t, std::shared_ptr<Read>> reads_;  // by the number of the request
  int64_t last_ = 0;
};

}  // namespace tessera::internal::mpi

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/mpi/ranks.h"
#include "tessera/core/comm/mpi/remote_reads.h"
#include "tessera/core/comm/mpi/window_server.h"

namespace tessera::internal::mpi {

/// The windows of one group: this rank's parts, which others read, and its reads of theirs. Used by
/// the progress thread alone.
class Windows {
 public:
  explicit Windows(std::shared_ptr<const Ranks> ranks)
      : ranks_(std::move(ranks)), server_(*ranks_), reads_(ranks_) {}

  const Ranks& ranks() const { return *ranks_; }

  /// This rank's part of window `number` is served from now on.
  void open(int64_t number, at::Tensor own) {
    if (!ranks_->has_failed()) server_.open(number, std::move(own));  // else nobody would end it
  }
  void close(int64_t number) { server_.close(number); }
  void close_all() { server_.close_all(); }
  void read(const std::shared_ptr<Call>& call, int owner, const ReadRequest& request) {
    reads_.start(call, owner, request);
  }
  /// Goes on with reads, and ends all of it if the group has failed. `link` is the group's. Throws
  /// Fault.
  void advance(const internal::Link& link, Call::Clock::time_point now);

  // What others tell.

  void answer(int reader, const Envelope& request) { server_.answer(reader, request); }
  void take(int owner, const Envelope& answer) { reads_.take(owner, answer); }
  void note_closed(int reader, int64_t number) { server_.note_closed(reader, number); }
  void note_ended(int rank);

  bool is_empty() const { return server_.is_empty() && !reads_.is_busy(); }
  bool has_reads() const { return reads_.is_busy(); }
  /// Whether others may come with requests at any time.
  bool is_asked() const { return server_.is_asked(); }

 private:
  const std::shared_ptr<const Ranks> ranks_;
  WindowServer server_;
  RemoteReads reads_;
};

/// The ranks' parts of the window that the call makes, which has its number; reads are calls of
/// `member`. Its destructor lets go of this rank's part, which others may read on.
std::shared_ptr<RemoteMemory> open_memory(std::shared_ptr<Windows> windows, const Call& made_by,
                                          std::weak_ptr<Member> member);

}  // namespace tessera::internal::mpi

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ScopeExit.h>

#include "tessera/collective.h"
#include "tessera/core/comm/shm/arena.h"
#include "tessera/core/comm/shm/member.h"

namespace tessera::internal::shm {

/// The common part of all collectives that move data: ranks post where their data is, work in each
/// other's memory, and finish together. Data in memory from the arena is read and written in place;
/// private data is copied through a staging area of kStagingBytes per rank. Used by the thread that
/// runs collectives.
class Exchange {
 public:
  static constexpr int64_t kStagingBytes = int64_t{256} << 10;

  /// References must outlive it.
  explicit Exchange(Member& member);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int rank() const { return member_.rank(); }
  int size() const { return member_.size(); }

  /// The call that is run: inside run_posted() that one, else this rank's next, whose data is
  /// `tensor`: where it is, or staged.
  CallDescriptor call_of(const Collective& collective, const at::Tensor& tensor);
  /// This rank's next call, also while another thread is inside run_posted() with an earlier one.
  CallDescriptor next_call_of(const Collective& collective, const at::Tensor& tensor);
  /// A call that gives nothing to the others.
  CallDescriptor call_of(const Collective& collective);

  /// Posts the call; then calls `part(begin, count)` for consecutive ranges of [0, numel): chunks
  /// if any rank uses its staging area, else one range. Before each, a rank that stages calls
  /// `stage(begin, count)` to fill its area; `part` must end with a phase, after which the areas
  /// may be filled again.
  template <typename Stage, typename Part>
  void in_chunks(const CallDescriptor& call, int64_t numel, int64_t chunk, Stage&& stage,
                 Part&& part) {
    // The first chunk is staged before the call is posted, which saves a phase.
    if (call.staged) stage(0, std::min(chunk, numel));
    if (posted_ == nullptr) member_.post(call);
    if (call.signature.op == Op::kReduceScatter) member_.check_slices();
    const bool is_staged = anyone_staged();
    has_phases_ = anyone_meets();
    const int64_t step = is_staged ? chunk : std::max<int64_t>(numel, 1);
    for (int64_t begin = 0; begin < numel; begin += step) {
      const int64_t count = std::min(step, numel - begin);
      if (begin > 0) {
        if (call.staged) stage(begin, count);
        phase();
      }
      part(begin, count);
    }
    end();
  }

  /// Posts a call without data and finishes it, when all ranks have posted theirs.
  void meet(const CallDescriptor& call) {
    member_.post(call);
    end();
  }

  /// Waits until all ranks have ended this part. Of a posted call, none waits: see PostedRing.
  void phase() {
    if (has_phases_) member_.arrive_and_wait();
  }

  /// Behind the last phase.
  void end() {
    member_.mark_done();
    if (posted_ == nullptr) member_.count_finished();
  }

  /// Whether `tensor` is read and written where it is.
  bool is_in_place(const at::Tensor& tensor) const {
    return tensor.numel() == 0 || arena_->find(tensor.const_data_ptr(), tensor.nbytes());
  }

  /// Runs `body`, an algorithm, for a call that all ranks have posted and this one has taken up.
  /// Blocks only if anyone_meets().
  template <typename Body>
  void run_posted(const CallDescriptor& call, Body&& body) {
    const auto reset = c10::make_scope_exit([this] {
      posted_ = nullptr;
      has_phases_ = true;
    });
    posted_ = &call;
    body();
  }

  /// After post(): whether the call has phases on all ranks because it has on one.
  bool anyone_meets();
  bool is_staged(int peer) { return member_.call_of(peer).staged; }
  char* source_of(int peer) { return member_.source_of(peer); }
  /// One address per rank, kept so that a collective allocates nothing.
  std::vector<char*>& sources() { return sources_; }
  /// Memory that peers can map, for the time of a collective.
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) {
    return arena_->allocate_tensor(numel, dtype);
  }
  std::string name_of(int rank) const { return member_.name_of(rank); }
  /// Throws CommError with this cause, on every rank that calls it or another collective.
  [[noreturn]] void fail(const std::string& cause) { member_.fail(cause); }
  /// This rank's staging area, if it has staged.
  char* staging() { return staging_; }

 private:
  bool anyone_staged();

  Member& member_;
  const std::shared_ptr<Arena> arena_;
  char* staging_ = nullptr;
  std::vector<char*> sources_;
  const CallDescriptor* posted_ = nullptr;  // inside run_posted()
  bool has_phases_ = true;
};

}  // namespace tessera::internal::shm

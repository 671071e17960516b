#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/shm/link.h"

namespace tessera::internal::shm {

/// A call that moves data between ranks, which work in each other's memory. Each rank takes
/// elements [0, numel) in one part. If any rank passes private memory through its staging area, all
/// ranks take parts of `chunk` elements instead, in two steps for each part: every rank takes the
/// part; then ranks with a staging area take their results out of the area and fill it with the
/// next part. No rank begins a step before all ranks have ended the previous step.
class ChunkedTransfer : public Transfer {
 public:
  void announce() final;
  State advance() final;
  std::vector<int> awaited() final;

 protected:
  /// `numel`: how many elements to take. A rank's staging area has `places` places, each with room
  /// for a chunk.
  ChunkedTransfer(Link& link, const Call& call, int64_t numel, int64_t places);

  /// Called before the call is posted. Sets where this rank's data lies. If the data is private,
  /// stages its first part.
  virtual void fill(PostedCall& posted);
  /// Sets `source` to where peers find `data`, which this rank gives. If `data` is private, stages
  /// its first part and sets `is_private`.
  void give(const at::Tensor& data, SharedRange& source, bool& is_private);

  /// Called when all ranks have posted the call. Throws Fault.
  virtual void begin() {}
  /// Fills the staging area with elements [begin, begin + count) of the input or, if the input has
  /// a part for each rank, of each part.
  virtual void stage(int64_t begin, int64_t count);
  virtual void take(int64_t begin, int64_t count) = 0;
  /// Called after all ranks have taken this part: takes the results out of the staging area.
  virtual void bring_back(int64_t /*begin*/, int64_t /*count*/) {}

  virtual char* source_of(int peer) {
    return link_.resolve(link_.call_of(peer, call_.sequence()).source);
  }

  const Collective& collective() const { return call_.collective(); }
  int rank() const { return link_.rank(); }
  int size() const { return link_.size(); }
  bool is_staged(int peer) const { return link_.call_of(peer, call_.sequence()).is_private; }
  int64_t bytes(int64_t numel) const { return numel * element_; }
  bool is_over() const { return next_ == Next::kOver; }

  Link& link_;
  const Call& call_;
  const int64_t element_;
  int64_t numel_;
  const int64_t chunk_;
  bool stages_ = false;  ///< this rank stages its data

 private:
  enum class Next : uint8_t { kBegin, kTake, kEndPart, kStage, kEnd, kOver };

  bool is_any_staged() const;
  int64_t count() const { return std::min(step_, numel_ - begin_); }

  Next next_ = Next::kBegin;
  int64_t step_ = 0;   // elements per part
  int64_t begin_ = 0;  // first element of the current part
  // advance() goes on when every rank has ended this many steps (Link::have_all_ended()).
  int64_t target_ = 0;
};

/// make_reduction(): for operations that reduce. For all_reduce, each rank reads numel / size()
/// elements of every rank and writes the result to every rank; for reduce_scatter, it reads its
/// slice of every rank's input. make_move(): for operations that only move data. For all_gather, a
/// rank copies every other rank's input; for broadcast, the root's input.
std::unique_ptr<Transfer> make_reduction(Link& link, const Call& call);
std::unique_ptr<Transfer> make_move(Link& link, const Call& call);

/// A call without data. When all ranks have called, opens the window or link that the call makes.
/// The call is over when all ranks have opened it; a barrier is over as soon as all ranks have
/// called.
class ControlTransfer final : public Transfer {
 public:
  ControlTransfer(Link& link, Call& call) : link_(link), call_(call) {}

  void announce() override;
  State advance() override;
  std::vector<int> awaited() override;

 private:
  Link& link_;
  Call& call_;
  bool has_met_ = false;
};

}  // namespace tessera::internal::shm

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/shm/link.h"

namespace tessera::internal::shm {

/// A call that moves data between ranks, which work in each other's memory. Each takes [0, numel)
/// in one part, or, if any rank passes private memory through its staging area, in parts of
/// `chunk`: before each, who stages fills its area, and after each, who has results there takes
/// them; no rank begins with either before all have come so far.
class ChunkedTransfer : public Transfer {
 public:
  void announce() final;
  State advance() final;
  std::vector<int> awaited() final;

 protected:
  /// `numel` elements are taken. A rank's staging area has room for a chunk in each of `places`.
  ChunkedTransfer(Link& link, const Call& call, int64_t numel, int64_t places);

  /// Before the call is posted: says where this rank's data lies, and stages the first part of it.
  virtual void fill(PostedCall& posted);
  /// Says where `data` lies, which this rank gives.
  void give(const at::Tensor& data, SharedRange& source, bool& is_private);

  /// When all ranks have posted the call. Throws Fault.
  virtual void begin() {}
  /// Fills the staging area with a part of the input, where it lies as in the tensor.
  virtual void stage(int64_t begin, int64_t count);
  virtual void take(int64_t begin, int64_t count) = 0;
  /// After all ranks have taken this part.
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
  bool stages_ = false;  ///< this rank does

 private:
  enum class Next : uint8_t { kBegin, kTake, kEndPart, kStage, kEnd, kOver };

  bool is_any_staged() const;
  int64_t count() const { return std::min(step_, numel_ - begin_); }

  Next next_ = Next::kBegin;
  int64_t step_ = 0;    // elements of a part
  int64_t begin_ = 0;   // of the part
  int64_t target_ = 0;  // steps that all ranks must have ended
};

/// Bytes: for all_reduce each rank reads numel / size() elements of every rank and writes them to
/// every rank; for reduce_scatter it reads its slice of every rank's input; for all_gather it
/// copies every other rank's input, for broadcast the root's. The second: of operations that reduce
/// nothing.
std::unique_ptr<Transfer> make_reduction(Link& link, const Call& call);
std::unique_ptr<Transfer> make_move(Link& link, const Call& call);

/// A call without data: opens, when all ranks have called, what it is about; over when all have.
class Meeting final : public Transfer {
 public:
  Meeting(Link& link, Call& call) : link_(link), call_(call) {}

  void announce() override;
  State advance() override;
  std::vector<int> awaited() override;

 private:
  Link& link_;
  Call& call_;
  bool has_met_ = false;
};

}  // namespace tessera::internal::shm

#include "tessera/core/comm/shm/group.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/shm/reduce_kernels.h"
#include "tessera/core/comm/shm/shared_buffer.h"
#include "tessera/core/error_text.h"
#include "tessera/core/errors.h"
#include "tessera/core/memory/copy_kernels.h"

namespace tessera::shm {
namespace {

// Slices of a reduction begin at multiples of this, so that ranks write to different cache lines.
constexpr int64_t kSliceMultiple = 64;

// From this size on the result of a reduction is written past the caches: no core's own cache holds
// it, and in training a whole backward passes before it is used.
constexpr int64_t kStreamedBytes = int64_t{1} << 20;

/// The part of [0, numel) that a rank reduces for all.
struct Slice {
  int64_t begin;
  int64_t numel;
};

Slice slice_of(int64_t numel, int size, int rank) {
  const int64_t share = (numel + size - 1) / size;
  const int64_t stride = (share + kSliceMultiple - 1) / kSliceMultiple * kSliceMultiple;
  const int64_t begin = std::min(stride * rank, numel);
  return {begin, std::min(stride, numel - begin)};
}

char* data_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.data_ptr()); }

void copy(char* to, const char* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void stream(char* to, const char* from, int64_t bytes) {
  if (bytes > 0 && to != from) copy_streaming(to, from, bytes);
}

}  // namespace

Group::Group(std::unique_ptr<Member> member, Lane::Mode mode)
    : uncaught_at_start_(std::uncaught_exceptions()),
      member_(std::move(member)),
      arena_(member_->world().arena()),
      sources_(member_->size()),
      lane_(mode) {
  member_->note_caller();
}

Group::~Group() {
  if (std::uncaught_exceptions() > uncaught_at_start_) {
    char text[80];
    std::snprintf(text, sizeof(text), "rank %d left while an exception unwound",
                  member_->world().rank());
    member_->abort(text);
  }
  member_->stop();  // the lane's thread comes back at once, so that joining it does not block
  lane_.close();
  if (staging_ != nullptr) arena_->free(staging_);
}

/// Turns whatever goes wrong in the middle of a collective into the same CommError on all ranks:
/// the others wait for this one.
template <typename Body>
void Group::guard(Body&& body) {
  try {
    body();
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    member_->fail(absl::StrCat("rank ", rank(), " failed: ", error_text(error)));
  }
}

template <typename Body>
std::shared_ptr<Work> Group::run(std::string_view tag, Body&& body) {
  member_->require_own_process(tag);
  member_->note_caller();
  if (lane_.mode() == Lane::Mode::kInline) {
    guard([&] { body(tag); });
    return completed_work();
  }
  return lane_.post([this, tag = std::string(tag), body = std::forward<Body>(body)] {
    guard([&] { body(tag); });
  });
}

std::shared_ptr<Work> Group::all_reduce(const at::Tensor& tensor, ReduceOp op,
                                        std::string_view tag) {
  check_all_reduce(tensor, op, place());
  return run(tag, [this, tensor, op](std::string_view name) { do_all_reduce(tensor, op, name); });
}

std::shared_ptr<Work> Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                            ReduceOp op, std::string_view tag, int slice) {
  check_reduce_scatter(output, input, op, size(), slice, place());
  const int own = slice == kOwnRank ? rank() : slice;
  check_own_slice("reduce_scatter", output, input, own);
  return run(tag, [this, output, input, op, own](std::string_view name) {
    do_reduce_scatter(output, input, op, name, own);
  });
}

std::shared_ptr<Work> Group::all_gather(const at::Tensor& output, const at::Tensor& input,
                                        std::string_view tag) {
  check_all_gather(output, input, size(), place());
  check_own_slice("all_gather", input, output, rank());
  return run(tag,
             [this, output, input](std::string_view name) { do_all_gather(output, input, name); });
}

std::shared_ptr<Work> Group::broadcast(const at::Tensor& tensor, int root, std::string_view tag) {
  check_broadcast(tensor, root, size(), place());
  return run(tag,
             [this, tensor, root](std::string_view name) { do_broadcast(tensor, root, name); });
}

void Group::barrier(std::string_view tag) {
  run(tag, [this](std::string_view name) { do_barrier(name); })->wait();
}

at::Tensor Group::allocate(int64_t numel, at::ScalarType dtype) {
  member_->require_own_process("allocate");
  return arena_->allocate_tensor(numel, dtype);
}

void Group::abort(std::string_view cause) noexcept { member_->abort(cause); }

CallDescriptor Group::describe_call(Op op, std::string_view tag, const at::Tensor& tensor) {
  CallDescriptor call = member_->next_call(op, tag);
  call.dtype = static_cast<int8_t>(tensor.scalar_type());
  call.numel = tensor.numel();
  return call;
}

void Group::expose(CallDescriptor& call, const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  if (const auto range = arena_->find(tensor.const_data_ptr(), tensor.nbytes())) {
    call.source = *range;
    return;
  }
  call.staged = true;
  call.source = *arena_->find(staging(), kStagingBytes);
}

char* Group::staging() {
  if (staging_ == nullptr) staging_ = arena_->allocate(kStagingBytes);
  return staging_;
}

bool Group::anyone_staged() {
  for (int rank = 0; rank < size(); ++rank) {
    if (member_->call_of(rank).staged) return true;
  }
  return false;
}

/// What all collectives that move data have in common. Posts the call; then `part(begin, count)`
/// runs for one range of [0, numel) after the other, a range being a chunk if data passes through
/// anyone's staging area and everything otherwise. Before each, a rank that stages lets
/// `stage(begin, count)` fill its area; `part` ends with a phase, after which the areas may be
/// filled again.
template <typename Stage, typename Part>
void Group::in_chunks(const CallDescriptor& call, int64_t numel, int64_t chunk, Stage&& stage,
                      Part&& part) {
  // The first chunk is staged before the call is posted, which saves a phase.
  if (call.staged) stage(0, std::min(chunk, numel));
  member_->post(call, lane_);
  if (call.op == static_cast<uint8_t>(Op::kReduceScatter)) member_->check_slices();
  const int64_t step = anyone_staged() ? chunk : std::max<int64_t>(numel, 1);
  for (int64_t begin = 0; begin < numel; begin += step) {
    const int64_t count = std::min(step, numel - begin);
    if (begin > 0) {
      if (call.staged) stage(begin, count);
      phase();
    }
    part(begin, count);
  }
  member_->finish();
}

void Group::do_all_reduce(const at::Tensor& tensor, ReduceOp op, std::string_view tag) {
  const auto dtype = tensor.scalar_type();
  const auto element = static_cast<int64_t>(tensor.element_size());
  char* const own = data_of(tensor);
  CallDescriptor call = describe_call(Op::kAllReduce, tag, tensor);
  call.reduce_op = static_cast<uint8_t>(op);
  expose(call, tensor);
  const auto stage = [&](int64_t begin, int64_t count) {
    copy(staging_, own + begin * element, count * element);
  };
  in_chunks(call, tensor.numel(), kStagingBytes / element, stage,
            [&](int64_t begin, int64_t count) {
              const Slice slice = slice_of(count, size(), rank());
              if (slice.numel > 0) {
                for (int peer = 0; peer < size(); ++peer) {
                  const int64_t offset =
                      member_->call_of(peer).staged ? slice.begin : begin + slice.begin;
                  sources_[peer] = member_->source_of(peer) + offset * element;
                }
                reduce(dtype, op, sources_.data(), size(), sources_.data(), size(), slice.numel);
              }
              phase();
              if (call.staged) copy(own + begin * element, staging_, count * element);
            });
}

void Group::do_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                              std::string_view tag, int slice) {
  const auto dtype = input.scalar_type();
  const auto element = static_cast<int64_t>(input.element_size());
  const int64_t numel = output.numel();  // of one slice
  const int64_t chunk = std::max<int64_t>(kStagingBytes / element / size(), 1);
  char* const own = data_of(input);
  char* const target = data_of(output);
  CallDescriptor call = describe_call(Op::kReduceScatter, tag, input);
  call.reduce_op = static_cast<uint8_t>(op);
  call.slice = slice;
  expose(call, input);
  const bool is_in_place = target == own + slice * numel * element;
  const Stores stores =
      !is_in_place && numel * element >= kStreamedBytes ? Stores::kStreaming : Stores::kCached;
  // Staged inputs lie as [slice][chunk]; what a rank receives of its own input is read where it is.
  const auto stage = [&](int64_t begin, int64_t count) {
    for (int i = 0; i < size(); ++i) {
      if (i == slice) continue;
      copy(staging_ + i * chunk * element, own + (i * numel + begin) * element, count * element);
    }
  };
  in_chunks(call, numel, chunk, stage, [&](int64_t begin, int64_t count) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) {
        sources_[peer] = own + (slice * numel + begin) * element;
      } else if (member_->call_of(peer).staged) {
        sources_[peer] = member_->source_of(peer) + slice * chunk * element;
      } else {
        sources_[peer] = member_->source_of(peer) + (slice * numel + begin) * element;
      }
    }
    char* const block = target + begin * element;
    reduce(dtype, op, sources_.data(), size(), &block, 1, count, stores);
    phase();
  });
}

void Group::do_all_gather(const at::Tensor& output, const at::Tensor& input, std::string_view tag) {
  const auto element = static_cast<int64_t>(input.element_size());
  const int64_t numel = input.numel();
  char* const own = data_of(input);
  char* const target = data_of(output);
  const bool is_in_place = own == target + rank() * numel * element;
  const int64_t copied_bytes = (size() - (is_in_place ? 1 : 0)) * numel * element;
  const auto place = streaming_pays(copied_bytes, size()) ? &stream : &copy;
  CallDescriptor call = describe_call(Op::kAllGather, tag, input);
  expose(call, input);
  const auto stage = [&](int64_t begin, int64_t count) {
    copy(staging_, own + begin * element, count * element);
  };
  in_chunks(call, numel, kStagingBytes / element, stage, [&](int64_t begin, int64_t count) {
    for (int peer = 0; peer < size(); ++peer) {
      char* const to = target + (peer * numel + begin) * element;
      if (peer == rank()) {
        place(to, own + begin * element, count * element);
      } else {
        const int64_t offset = member_->call_of(peer).staged ? 0 : begin;
        place(to, member_->source_of(peer) + offset * element, count * element);
      }
    }
    phase();
  });
}

void Group::do_broadcast(const at::Tensor& tensor, int root, std::string_view tag) {
  const auto element = static_cast<int64_t>(tensor.element_size());
  char* const own = data_of(tensor);
  CallDescriptor call = describe_call(Op::kBroadcast, tag, tensor);
  call.root = root;
  if (rank() == root) expose(call, tensor);
  const auto stage = [&](int64_t begin, int64_t count) {
    copy(staging_, own + begin * element, count * element);
  };
  in_chunks(
      call, tensor.numel(), kStagingBytes / element, stage, [&](int64_t begin, int64_t count) {
        if (rank() != root) {
          const int64_t offset = member_->call_of(root).staged ? 0 : begin;
          copy(own + begin * element, member_->source_of(root) + offset * element, count * element);
        }
        phase();
      });
}

void Group::do_barrier(std::string_view tag) {
  member_->post(member_->next_call(Op::kBarrier, tag), lane_);
  member_->finish();
}

std::unique_ptr<tessera::Window> Group::make_window(const at::Tensor& own, std::string_view name) {
  check_window(own, name);
  std::unique_ptr<Window> window;
  std::string problem;
  run(name, [this, &own, &window, &problem](std::string_view own_name) {
    window = do_make_window(own, own_name, problem);
  })->wait();
  TORCH_CHECK(problem.empty(), problem);
  return window;
}

std::unique_ptr<tessera::SharedBuffer> Group::make_shared_buffer(int64_t bytes,
                                                                 std::string_view name) {
  return SharedBuffer::make(*this, bytes, name);
}

std::unique_ptr<Window> Group::do_make_window(const at::Tensor& own, std::string_view name,
                                              std::string& problem) {
  CallDescriptor call = describe_call(Op::kMakeWindow, name, own);
  if (own.numel() > 0) {
    // Memory that nobody else can map is posted like the rest, so that all ranks learn of it.
    const auto range = arena_->find(own.const_data_ptr(), own.nbytes());
    call.staged = !range;
    if (range) call.source = *range;
  }
  member_->post(call, lane_);
  std::vector<std::string> culprits;
  for (int rank = 0; rank < size(); ++rank) {
    if (member_->call_of(rank).staged) culprits.push_back(member_->name_of(rank));
  }
  std::unique_ptr<Window> window;
  if (culprits.empty()) window = std::make_unique<Window>(*member_, own);
  phase();  // owners may let go of their descriptors once all have opened them
  member_->finish();
  if (!culprits.empty()) {
    problem = absl::StrCat("[comm] make_window '", std::string(name), "': got private memory on ",
                           absl::StrJoin(culprits, ", "),
                           ", expected memory that peers can map; it must come from allocate()");
  }
  return window;
}

std::shared_ptr<ProcessGroup> Group::subgroup(const std::vector<int>& ranks,
                                              std::string_view name) {
  check_subgroup(ranks, name, size(), subgroup_names_);
  subgroup_names_.insert(std::string(name));
  std::unique_ptr<Member> member;
  run(name, [this, &ranks, &member](std::string_view own_name) {
    member = do_subgroup(ranks, own_name);
  })->wait();
  if (member == nullptr) return nullptr;
  return std::make_shared<Group>(std::move(member), lane_.mode());
}

std::unique_ptr<Member> Group::do_subgroup(const std::vector<int>& ranks, std::string_view name) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  const int leader = ranks.front();
  const auto count = static_cast<int>(ranks.size());
  CallDescriptor call = member_->next_call(
      Op::kSubgroup, absl::StrCat(std::string(name), " [", absl::StrJoin(ranks, ", "), "]"));
  std::shared_ptr<Segment> memory;
  if (rank() == leader) {
    memory = Segment::create(Channel::bytes(count));
    Channel* channel = Channel::create(memory->data(), count);
    for (int i = 0; i < count; ++i) {
      channel->slot(i).world_rank = member_->world_rank(ranks[i]);
      channel->slot(i).caller.store(0, std::memory_order_relaxed);
    }
    call.source = memory->range(0);
  }
  member_->post(call, lane_);
  if (own != ranks.end() && memory == nullptr) {
    memory = Segment::open(member_->call_of(leader).source);
  }
  phase();  // the leader may let go of the descriptor once all have opened it
  member_->finish();
  if (own == ranks.end()) return nullptr;
  auto* channel = reinterpret_cast<Channel*>(memory->data());
  return std::make_unique<Member>(
      member_->world_ptr(), std::move(memory), *channel, static_cast<int>(own - ranks.begin()),
      absl::StrCat(member_->group_name(), "/", std::string(name)), member_->options());
}

}  // namespace tessera::shm

#include "tessera/core/comm/shm/group.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/comm/shm/algorithms.h"
#include "tessera/core/comm/shm/shared_buffer.h"
#include "tessera/core/process/error_text.h"
#include "tessera/errors.h"

namespace tessera::internal::shm {
namespace {

// How often a lane that waits for another group's call looks whether its own group goes.
constexpr auto kLook = std::chrono::milliseconds(20);

}  // namespace

Group::Group(std::unique_ptr<Member> member, Lane::Mode mode)
    : member_(std::move(member)),
      arena_(member_->world().arena()),
      exchange_(*member_),
      posted_(*member_, exchange_),
      lane_(mode, [this] { member_->stop(); }) {}

Group::~Group() {
  if (unwinding_.is_by_own_error()) {
    char text[80];
    std::snprintf(text, sizeof(text), "rank %d left while an exception unwound",
                  member_->world().number_of(member_->world().rank()));
    member_->abort(text);
  }
  if (mailbox_ != nullptr) mailbox_->close();
  member_->stop();  // the lane's thread comes back at once, so that joining it does not block
  lane_.close();
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
    member_->fail(absl::StrCat(member_->name_of(rank()), " failed: ", error_text(error)));
  }
}

/// Blocks until what the call goes on with has finished, or this rank leaves.
void Group::await_other(Collective& call) {
  if (call.after == nullptr) return;
  const auto fail = [&](const std::string& cause) {
    member_->fail(member_->next_call(call.signature(), call.tag), cause);
  };
  while (lane_.mode() == Lane::Mode::kThread && !call.after->wait_for(kLook)) {
    if (lane_.is_closing()) fail("the group was destroyed while this collective ran");
  }
  try {
    std::exchange(call.after, nullptr)->wait();
  } catch (const CommError& error) {
    fail(error.cause());
  }
}

template <typename Body>
std::shared_ptr<Work> Group::on_lane(Op op, std::string_view tag, Body&& body) {
  member_->require_own_process(to_string(op), tag);
  if (lane_.mode() == Lane::Mode::kInline) {
    guard([&] {
      posted_.finish();
      body(tag);
    });
    return completed_work();
  }
  return lane_.post([this, tag = std::string(tag), body = std::forward<Body>(body)]() mutable {
    guard([&] { body(tag); });
  });
}

std::shared_ptr<Work> Group::run_message(const Collective& message) {
  member_->require_own_process(to_string(message.op), message.tag);
  if (mailbox_ == nullptr) mailbox_ = std::make_shared<Mailbox>(*member_);
  return message.op == Op::kSend ? mailbox_->send(message) : mailbox_->receive(message);
}

std::shared_ptr<Work> Group::run(const Collective& collective) {
  if (traits_of(collective.op).tensors == OpTraits::Tensors::kMessage) {
    return run_message(collective);
  }
  const Algorithm algorithm = algorithm_of(collective.op);
  if (algorithm == nullptr) refuse(collective);
  if (collective.posted && lane_.mode() == Lane::Mode::kInline &&
      exchange_.is_in_place(collective.input)) {
    member_->require_own_process(to_string(collective.op), collective.tag);
    std::shared_ptr<Work> work;
    guard([&] { work = posted_.post(collective, algorithm); });
    return work;
  }
  auto work = on_lane(collective.op, collective.tag,
                      [this, algorithm, call = collective](std::string_view tag) mutable {
                        call.tag = tag;  // the caller's may be gone
                        await_other(call);
                        algorithm(exchange_, call);
                      });
  if (collective.op == Op::kBarrier) work->wait();
  return work;
}

at::Tensor Group::allocate(int64_t numel, at::ScalarType dtype) {
  member_->require_own_process("allocate", "");
  return arena_->allocate_tensor(numel, dtype);
}

void Group::abort(std::string_view cause) noexcept { member_->abort(cause); }

std::unique_ptr<tessera::Window> Group::make_window(const at::Tensor& own, std::string_view name) {
  check_window(own, name);
  std::unique_ptr<Window> window;
  std::string problem;
  on_lane(Op::kMakeWindow, name, [this, &own, &window, &problem](std::string_view own_name) {
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
  CallDescriptor call = member_->next_call(
      {.op = Op::kMakeWindow, .dtype = own.scalar_type(), .numel = own.numel()}, name);
  if (own.numel() > 0) {
    // Memory that peers cannot map is posted too, so that all ranks learn of it.
    const auto range = arena_->find(own.const_data_ptr(), own.nbytes());
    call.staged = !range;
    if (range) call.source = *range;
  }
  member_->post(call);
  std::vector<std::string> culprits;
  for (int rank = 0; rank < size(); ++rank) {
    if (member_->call_of(rank).staged) culprits.push_back(member_->name_of(rank));
  }
  std::unique_ptr<Window> window;
  if (culprits.empty()) window = std::make_unique<Window>(*member_, own);
  exchange_.phase();  // owners may let go of their descriptors once all have opened them
  exchange_.end();
  if (!culprits.empty()) {
    problem = absl::StrCat("[comm] make_window '", std::string(name), "': got private memory on ",
                           absl::StrJoin(culprits, ", "),
                           ", expected memory that peers can map; it must come from allocate()");
  }
  return window;
}

std::shared_ptr<ProcessGroup> Group::subgroup(const std::vector<int>& ranks,
                                              std::string_view name) {
  member_->require_own_process(to_string(Op::kSubgroup), name);
  check_subgroup(ranks, name, size(), subgroup_names_);
  subgroup_names_.insert(std::string(name));
  std::unique_ptr<Member> member;
  on_lane(Op::kSubgroup, name, [this, &ranks, &member](std::string_view own_name) {
    member = do_subgroup(ranks, own_name);
  })->wait();
  if (member == nullptr) return nullptr;
  return std::make_shared<Group>(std::move(member), lane_.mode());
}

std::unique_ptr<Member> Group::do_subgroup(const std::vector<int>& ranks, std::string_view name) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  const int leader = ranks.front();
  const auto count = static_cast<int>(ranks.size());
  CallDescriptor call =
      member_->next_call({.op = Op::kSubgroup},
                         absl::StrCat(std::string(name), " [", absl::StrJoin(ranks, ", "), "]"));
  std::shared_ptr<Segment> memory;
  if (rank() == leader) {
    memory = Segment::create(Channel::bytes(count));
    Channel* channel = Channel::create(memory->data(), count);
    for (int i = 0; i < count; ++i) {
      channel->slot(i).world_rank = member_->world_rank(ranks[i]);
      channel->slot(i).number = member_->channel().slot(ranks[i]).number;
    }
    call.source = memory->range(0);
  }
  member_->post(call);
  if (own != ranks.end() && memory == nullptr) {
    memory = Segment::open(member_->call_of(leader).source);
  }
  exchange_.phase();  // the leader may let go of the descriptor once all have opened it
  exchange_.end();
  if (own == ranks.end()) return nullptr;
  auto* channel = reinterpret_cast<Channel*>(memory->data());
  return std::make_unique<Member>(
      member_->world_ptr(), std::move(memory), *channel, static_cast<int>(own - ranks.begin()),
      absl::StrCat(member_->group_name(), "/", std::string(name)), member_->options());
}

}  // namespace tessera::internal::shm

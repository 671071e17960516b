#include "tessera/core/comm/mpi/windows.h"

#include <cstring>

#include <ATen/ops/empty.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/mpi/progress.h"
#include "tessera/window.h"

namespace tessera::internal::mpi {
namespace {

class Memory final : public RemoteMemory {
 public:
  Memory(std::shared_ptr<Windows> windows, const Call& made_by, std::weak_ptr<Member> member)
      : windows_(std::move(windows)),
        number_(made_by.sequence()),
        own_(made_by.collective().input),
        group_(made_by.group()),
        member_(std::move(member)) {}

  ~Memory() override {
    Progress::instance().post([windows = windows_, number = number_] {
      windows->ranks().world().guard([&] { windows->close(number); });
    });
  }

  std::string failure() const override { return ranks().failure().cause; }

  std::shared_ptr<Work> read(int rank, int64_t begin_bytes, const at::Tensor& to,
                             std::string_view tag, int64_t /*version*/) override {
    const auto bytes = static_cast<int64_t>(to.nbytes());
    if (rank != ranks().rank()) return ask("read", rank, {number_, begin_bytes, bytes, 0}, to, tag);
    std::memmove(data_of(to), data_of(own_) + begin_bytes, to.nbytes());
    return completed_work();
  }

  int64_t load(int rank, int64_t begin_bytes) override {
    if (rank == ranks().rank()) return load_word(data_of(own_) + begin_bytes);
    const at::Tensor word = at::empty({1}, at::kLong);
    ask("load", rank, {number_, begin_bytes, static_cast<int64_t>(sizeof(int64_t)), 1}, word, "")
        ->wait();
    return *word.const_data_ptr<int64_t>();
  }

 private:
  const Ranks& ranks() const { return windows_->ranks(); }

  std::shared_ptr<Call> ask(const char* name, int owner, const ReadRequest& request,
                            const at::Tensor& to, std::string_view tag) const {
    auto call = std::make_shared<Call>(
        member_, ranks().world().origin(),
        Call::Form{
            .collective = {.op = Op::kRecv, .output = to, .input = to, .peer = owner, .tag = tag},
            .group = group_,
            .rank = ranks().rank(),
            .number = ranks().world().rank(),
            .has_thread = true,
            .name = name},
        /*flights=*/nullptr);
    const bool is_posted = Progress::instance().post([windows = windows_, call, owner, request] {
      windows->ranks().world().guard([&] { windows->read(call, owner, request); });
      if (windows->ranks().has_failed()) call->fail(windows->ranks().failure().cause);
    });
    if (!is_posted) call->fail(kProcessEnds);
    return call;
  }

  const std::shared_ptr<Windows> windows_;
  const int64_t number_;
  const at::Tensor own_;
  const std::shared_ptr<const std::string> group_;
  const std::weak_ptr<Member> member_;
};

}  // namespace

void Windows::note_ended(int rank) {
  for (auto& [number, served] : served_) served.readers.erase(rank);
  drop_unused();
}

std::shared_ptr<RemoteMemory> open_memory(std::shared_ptr<Windows> windows, const Call& made_by,
                                          std::weak_ptr<Member> member) {
  return std::make_shared<Memory>(std::move(windows), made_by, std::move(member));
}

}  // namespace tessera::internal::mpi

#include "tessera/core/comm/nccl/host_gather.h"

#include <string_view>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/meeting/shared_table.h"
#include "tessera/core/comm/nccl/meeting.h"

namespace tessera::internal::nccl {
namespace {

constexpr std::string_view kChannel = "host";

class HostGather final : public Work {
 public:
  HostGather(std::shared_ptr<Pending> pending, std::shared_ptr<HostChannel> channel,
             at::Tensor output)
      : pending_(std::move(pending)), channel_(std::move(channel)), output_(std::move(output)) {
    channel_->is_open = true;
  }
  ~HostGather() override {
    if (!is_open_) return;
    channel_->is_open = false;
    pending_->mark_finished();  // so it cannot time out
  }

  bool is_completed() override { return pending_->is_completed(); }

  void wait() override {
    if (!is_open_) {
      if (!pending_->look()) pending_->throw_if_failed();
      return;
    }
    is_open_ = channel_->is_open = false;
    pending_->rewind();
    pending_->carry_out([this] { take_parts(); });
    pending_->mark_finished();
  }

 private:
  /// Every rank's part into the output.
  void take_parts() {
    const std::vector<std::string> parts = take(*pending_, kChannel);
    // All have given this one, so all are through with the ones before.
    auto& keys = channel_->keys;
    for (; keys.size() > 1; keys.erase(keys.begin())) {
      pending_->world().options().table->erase(keys.front());
    }
    // They come from outside this process, whatever the calls say.
    const size_t part_bytes = output_.nbytes() / parts.size();
    auto* to = static_cast<char*>(output_.mutable_data_ptr());
    for (size_t rank = 0; rank < parts.size(); ++rank, to += part_bytes) {
      if (parts[rank].size() != part_bytes) {
        pending_->fail(absl::StrCat("got ", parts[rank].size(), " bytes of ",
                                    pending_->progress().name_of(static_cast<int>(rank)),
                                    ", expected ", part_bytes,
                                    "; give every world a table of its own"));
      }
      parts[rank].copy(to, part_bytes);
    }
  }

  const std::shared_ptr<Pending> pending_;
  const std::shared_ptr<HostChannel> channel_;
  const at::Tensor output_;
  bool is_open_ = true;
};

}  // namespace

std::shared_ptr<Work> start_host_gather(std::shared_ptr<Pending> pending,
                                        std::shared_ptr<HostChannel> channel, at::Tensor output,
                                        const at::Tensor& input) {
  const std::string_view part(static_cast<const char*>(input.const_data_ptr()), input.nbytes());
  channel->keys.push_back(give(*pending, kChannel, part));
  return std::make_shared<HostGather>(std::move(pending), std::move(channel), std::move(output));
}

}  // namespace tessera::internal::nccl

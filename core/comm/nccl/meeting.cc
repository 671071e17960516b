#include "tessera/core/comm/nccl/meeting.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/meeting/shared_table.h"

namespace tessera::internal::nccl {
namespace {

constexpr std::string_view kHostChannel = "host";

std::string exchange_key(const Pending& pending, std::string_view what, int rank) {
  return absl::StrCat("nccl/", std::string(what), "/", pending.group(), "/",
                      pending.call().sequence, "/", rank);
}

/// Returns body(table). If the table throws, the world fails.
template <typename Body>
auto at_table(Pending& pending, Body&& body) {
  try {
    return body(*pending.world().options().table);
  } catch (const CommError&) {
    throw;
  } catch (const std::runtime_error& error) {
    pending.fail(absl::StrCat("rank ", pending.world().options().rank,
                              " failed: the table that ranks share: ", error.what()));
  }
}

/// `given` is the text of a rank's call, a 0 byte, and the text that the rank gave. Returns the
/// text of the call.
absl::string_view call_in(const std::string& given) { return given.c_str(); }

/// Puts the text of this rank's call and `text` into the table, even in a world of one rank.
/// Returns the key.
std::string give(Pending& pending, std::string_view what, std::string_view text) {
  std::string key = exchange_key(pending, what, pending.rank());
  std::string given = pending.call().text();
  given.append(1, '\0').append(text);
  at_table(pending, [&](SharedTable& table) { table.set(key, given); });
  return key;
}

/// Waits until the texts of all ranks are in the table, and returns them by rank. If the ranks'
/// calls differ, fails the world and throws CommError.
std::vector<std::string> take(Pending& pending, std::string_view what) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < pending.size(); ++rank) {
    keys.push_back(exchange_key(pending, what, rank));
  }
  std::vector<std::string> texts = at_table(pending, [&](SharedTable& table) {
    // has() does not wait for other ranks, so pending.await() can check the time-out between calls
    // of it.
    pending.await([&] { return table.has(keys); });
    std::vector<std::string> found;
    for (const std::string& key : keys) found.push_back(table.get(key).value_or(""));
    return found;
  });
  for (int rank = 1; rank < pending.size(); ++rank) {
    if (call_in(texts[rank]) == call_in(texts[0])) continue;
    const Progress& progress = pending.progress();
    pending.fail(absl::StrCat(progress.name_of(rank), " called ", call_in(texts[rank]), " where ",
                              progress.name_of(0), " called ", call_in(texts[0])));
  }
  for (std::string& text : texts) text.erase(0, call_in(text).size() + 1);
  return texts;
}

class StoreGather final : public Work {
 public:
  StoreGather(std::shared_ptr<Pending> pending, std::shared_ptr<HostChannel> channel,
              at::Tensor output)
      : pending_(std::move(pending)), channel_(std::move(channel)), output_(std::move(output)) {
    channel_->is_open = true;
  }
  ~StoreGather() override {
    if (!is_open_) return;
    channel_->is_open = false;
    pending_->mark_finished();  // nobody waits for it, so it must not time out
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
  /// Copies every rank's part into the output.
  void take_parts() {
    const std::vector<std::string> parts = take(*pending_, kHostChannel);
    // All ranks have published their parts of this gather, so no rank will read parts of earlier
    // ones any more, and this rank's earlier keys can be erased.
    auto& keys = channel_->keys;
    for (; keys.size() > 1; keys.erase(keys.begin())) {
      pending_->world().options().table->erase(keys.front());
    }
    // The parts come from outside this process, so their sizes are checked.
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

std::vector<std::string> exchange(Pending& pending, std::string_view what, std::string_view text) {
  if (pending.size() == 1) return {std::string(text)};
  give(pending, what, text);
  return take(pending, what);
}

std::shared_ptr<Work> start_store_gather(std::shared_ptr<Pending> pending,
                                         std::shared_ptr<HostChannel> channel, at::Tensor output,
                                         const at::Tensor& input) {
  const std::string_view part(static_cast<const char*>(input.const_data_ptr()), input.nbytes());
  channel->keys.push_back(give(*pending, kHostChannel, part));
  return std::make_shared<StoreGather>(std::move(pending), std::move(channel), std::move(output));
}

void check_result(Pending& pending, Communicator& communicator, std::optional<Result> result) {
  if (!result) {
    pending.throw_if_failed();
    pending.fail(absl::StrCat("communicator '", communicator.name(), "' was taken down"));
  }
  if (*result == Result::kSuccess || *result == Result::kInProgress) return;
  pending.fail(absl::StrCat("rank ", pending.world().options().rank, " failed: NCCL reports ",
                            communicator.error_text(*result), " on communicator '",
                            communicator.name(), "'"));
}

void await_ready(Pending& pending, Communicator& communicator) {
  pending.await([&] {
    const std::optional<Result> state = communicator.poll();
    check_result(pending, communicator, state);
    return *state == Result::kSuccess;
  });
}

std::shared_ptr<Communicator> split(Pending& pending, Communicator& parent, int color, int key,
                                    const std::string& name, bool uses_copy_engines) {
  World& world = pending.world();
  auto child = std::make_shared<Communicator>(world.options().api, name, uses_copy_engines);
  world.adopt(child);
  check_result(pending, parent, parent.split(color, key, *child));
  // Only when the parent is ready does the child have a communicator that can be polled.
  await_ready(pending, parent);
  child->complete_split();
  if (color == kNoColor) return nullptr;
  await_ready(pending, *child);
  return child;
}

std::shared_ptr<Communicator> meet(Pending& pending) {
  const WorldOptions& options = pending.world().options();
  auto communicator =
      std::make_shared<Communicator>(options.api, absl::StrCat(pending.group(), ": reduce lane"));
  UniqueId id{};
  if (options.rank == 0) {
    check_result(pending, *communicator, options.api->get_unique_id(&id));
  }
  // exchange() waits until all ranks have come, and names the missing ones; NCCL, which connects
  // the ranks next, could not name them.
  const std::vector<std::string> ids =
      exchange(pending, "id", std::string_view(id.internal, UniqueId::kBytes));
  ids[0].copy(id.internal, UniqueId::kBytes);
  pending.world().adopt(communicator);
  check_result(pending, *communicator, communicator->init(options.size, options.rank, id));
  await_ready(pending, *communicator);
  return communicator;
}

}  // namespace tessera::internal::nccl

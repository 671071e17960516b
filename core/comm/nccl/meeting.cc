#include "tessera/core/comm/nccl/meeting.h"

#include <cstring>

#include <absl/strings/str_cat.h>

namespace tessera::internal::nccl {
namespace {

std::string text_of(const NcclOptions& options) {
  std::string text = "memory kDefault";
  if (options.memory == NcclOptions::Memory::kRegistered) text = "memory kRegistered";
  if (options.memory == NcclOptions::Memory::kWindows) text = "memory kWindows";
  return options.copy_engine ? text + " with copy engines" : text;
}

[[noreturn]] void fail_at_table(World& world, Pending& pending, const std::string& problem) {
  pending.fail(absl::StrCat("rank ", world.options().rank,
                            " failed: the table that ranks share: ", problem));
}

}  // namespace

std::string exchange_key(const Progress& progress, int64_t sequence, std::string_view what,
                         int rank) {
  return absl::StrCat("nccl/", std::string(what), "/", progress.group(), "/", sequence, "/", rank);
}

std::string give(World& world, Pending& pending, int rank, std::string_view what,
                 const std::string& text) {
  std::string key = exchange_key(pending.progress(), pending.call().sequence, what, rank);
  std::string problem;
  try {
    world.agreement().table().set(key, text);
    return key;
  } catch (const CommError&) {
    throw;
  } catch (const std::runtime_error& error) {
    problem = error.what();
  }
  fail_at_table(world, pending, problem);
}

std::vector<std::string> take(World& world, Pending& pending, std::string_view what) {
  const size_t size = pending.progress().world_ranks().size();
  std::vector<std::string> keys;
  for (size_t i = 0; i < size; ++i) {
    keys.push_back(
        exchange_key(pending.progress(), pending.call().sequence, what, static_cast<int>(i)));
  }
  std::string problem;
  try {
    // The time-out is pending's own: looking at the table must not block.
    pending.await([&] { return world.agreement().table().has(keys); });
    std::vector<std::string> texts;
    texts.reserve(keys.size());
    for (const std::string& key : keys)
      texts.push_back(world.agreement().table().get(key).value_or(""));
    return texts;
  } catch (const CommError&) {
    throw;
  } catch (const std::runtime_error& error) {
    problem = error.what();
  }
  fail_at_table(world, pending, problem);
}

std::vector<std::string> exchange(World& world, Pending& pending, int rank, std::string_view what,
                                  const std::string& text) {
  give(world, pending, rank, what, text);
  return take(world, pending, what);
}

void check_result(World& world, Pending& pending, Communicator& communicator,
                  std::optional<Result> result) {
  if (!result) {
    pending.throw_if_failed();
    pending.fail(absl::StrCat("communicator '", communicator.name(), "' was taken down"));
  }
  if (*result == Result::kSuccess || *result == Result::kInProgress) return;
  pending.fail(absl::StrCat("rank ", world.options().rank, " failed: NCCL reports ",
                            communicator.error_text(*result), " on communicator '",
                            communicator.name(), "'"));
}

void await_ready(World& world, Pending& pending, Communicator& communicator) {
  pending.await([&] {
    const std::optional<Result> state = communicator.poll();
    check_result(world, pending, communicator, state);
    return *state == Result::kSuccess;
  });
}

std::shared_ptr<Communicator> split(World& world, Pending& pending, Communicator& parent, int color,
                                    int key, const std::string& name, Communicator::Engine engine) {
  auto child = std::make_shared<Communicator>(world.options().api, name, engine);
  world.adopt(child);
  check_result(world, pending, parent, parent.split(color, key, *child));
  // Until the parent is ready, the child is not there to be asked.
  await_ready(world, pending, parent);
  child->complete_split();
  if (color == kNoColor) return nullptr;
  await_ready(world, pending, *child);
  return child;
}

Communicator::Engine gather_engine(const World& world) {
  return world.options().nccl.copy_engine ? Communicator::Engine::kCopies
                                          : Communicator::Engine::kKernels;
}

std::shared_ptr<Communicator> meet(World& world, Pending& pending) {
  const WorldOptions& options = world.options();
  auto communicator =
      std::make_shared<Communicator>(options.api, lane_name(pending.progress().group(), "reduce"));
  UniqueId id{};
  std::string text;
  if (options.rank == 0) {
    const Result made = options.api->get_unique_id(&id);
    check_result(world, pending, *communicator, made);
    text.assign(id.internal, UniqueId::kBytes);
  }
  text += text_of(options.nccl);
  // All ranks are there before NCCL is asked to meet them: it could not say who is missing.
  const std::vector<std::string> texts = exchange(world, pending, options.rank, "id", text);
  if (texts[0].size() < UniqueId::kBytes) {
    pending.fail(absl::StrCat("got an id of ", texts[0].size(), " bytes from rank 0, expected ",
                              UniqueId::kBytes, "; give every world a table of its own"));
  }
  const std::string expected = texts[0].substr(UniqueId::kBytes);
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == expected) continue;
    pending.fail(absl::StrCat("rank ", rank, " asks for ", texts[rank], " where rank 0 asks for ",
                              expected, "; set the options of nccl alike on all ranks"));
  }
  std::memcpy(id.internal, texts[0].data(), UniqueId::kBytes);
  world.adopt(communicator);
  check_result(world, pending, *communicator, communicator->init(options.size, options.rank, id));
  await_ready(world, pending, *communicator);
  return communicator;
}

std::string lane_name(std::string_view group, std::string_view lane) {
  return absl::StrCat(std::string(group), ": ", std::string(lane), " lane");
}

}  // namespace tessera::internal::nccl

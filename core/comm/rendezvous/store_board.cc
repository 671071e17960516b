#include "tessera/core/comm/rendezvous/store_board.h"

#include <exception>
#include <future>
#include <optional>
#include <typeinfo>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Type.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/core/comm/meeting/tcp_address.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/thread_without_signals.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

constexpr const char* kKey = "tessera/meeting";

/// Runs `call` in a thread and returns or throws its result, or returns nothing if it is not done
/// by `deadline`; the thread is detached then, as a store may block forever. `call` must own all
/// that it uses. Throws std::runtime_error if no thread can be started.
template <typename Call>
auto call_until(Deadline deadline, Call call) -> std::optional<decltype(call())> {
  std::packaged_task<decltype(call())()> task(std::move(call));
  auto result = task.get_future();
  thread_without_signals("a call that may not return", std::move(task)).detach();
  if (result.wait_until(deadline) != std::future_status::ready) return std::nullopt;
  return result.get();
}

absl::StatusOr<Store> connect_to_agent(const std::string& host, int port, Deadline deadline) {
  // c10d's constructor waits, and logs, for as long as it likes where nobody listens.
  const auto address = TcpAddress::resolve({host}, port);
  if (!address.ok()) return address.status();
  const auto socket = address->connect(deadline);
  if (!socket.ok()) {
    return absl::Status(socket.status().code(), absl::StrCat(std::string(socket.status().message()),
                                                             "; is torchrun there?"));
  }
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = bounded(std::chrono::milliseconds(milliseconds_until(deadline)));
  std::string reason = "something accepts connections there, but is no store";
  try {
    const auto store = call_until(deadline, [host, options] {
      return Store(c10::make_intrusive<c10d::TCPStore>(host, options));
    });
    if (store) return *store;
  } catch (const std::exception& error) {
    reason = error_text(error);
    reason = reason.substr(0, reason.find('\n'));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("no store answered (", reason, "); is torchrun there?"));
}

class StoreBoard final : public Board {
 public:
  /// Connects to the store at the first call.
  using Connect = std::function<absl::StatusOr<Store>(Deadline deadline)>;

  StoreBoard(Connect connect, std::string key, std::string what)
      : connect_(std::move(connect)), key_(std::move(key)), what_(std::move(what)) {}

  absl::Status put(const std::string& text, Deadline deadline) override {
    return call<bool>(deadline,
                      [text](c10d::Store& store, const std::string& key) {
                        store.set(key, text);
                        return true;
                      })
        .status();
  }

  absl::StatusOr<std::optional<std::string>> look(Deadline deadline) override {
    using Text = std::optional<std::string>;
    // get() of a key that is not there would block, and others with it.
    return call<Text>(deadline, [](c10d::Store& store, const std::string& key) {
      return store.check({key}) ? Text(store.get_to_str(key)) : std::nullopt;
    });
  }

 private:
  template <typename Result, typename Call>
  absl::StatusOr<Result> call(Deadline deadline, Call call) {
    if (store_ == nullptr) {
      auto store = connect_(deadline);
      if (!store.ok()) return store.status();
      store_ = *std::move(store);
    }
    try {
      auto result = call_until(deadline, [store = store_, key = key_, call = std::move(call)] {
        return call(*store, key);
      });
      if (result) return *std::move(result);
    } catch (const std::exception& error) {
      return absl::FailedPreconditionError(
          absl::StrCat(what_, " failed: ", error_text(error), "; see why"));
    }
    return absl::DeadlineExceededError(
        absl::StrCat(what_, " has not answered; its call is left behind"));
  }

  const Connect connect_;
  const std::string key_;
  const std::string what_;
  Store store_;
};

}  // namespace

std::unique_ptr<Board> board_of(Store store) {
  const std::string what =
      absl::StrCat("the ", c10::demangle(typeid(*store).name()), " that was given");
  return std::make_unique<StoreBoard>([store](Deadline /*deadline*/) { return store; }, kKey, what);
}

std::unique_ptr<Board> board_of_agent(const std::string& host, int port, const std::string& key) {
  return std::make_unique<StoreBoard>(
      [host, port](Deadline deadline) { return connect_to_agent(host, port, deadline); }, key,
      "torchrun's store");
}

}  // namespace tessera::internal

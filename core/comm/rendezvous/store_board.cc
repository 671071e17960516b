#include "tessera/core/comm/rendezvous/store_board.h"

#include <optional>
#include <typeinfo>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Type.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/core/comm/meeting/abandoned_call.h"
#include "tessera/core/comm/meeting/tcp_address.h"
#include "tessera/core/process/error_text.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

constexpr const char* kKey = "tessera/meeting";

class StoreBoard final : public Board {
 public:
  StoreBoard(Store store, std::string key, std::string what)
      : store_(std::move(store)), key_(std::move(key)), what_(std::move(what)) {}

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

  const Store store_;
  const std::string key_;
  const std::string what_;
};

class AgentBoard final : public Board {
 public:
  AgentBoard(std::string host, int port, std::string key)
      : host_(std::move(host)), port_(port), key_(std::move(key)) {}

  absl::Status put(const std::string& text, Deadline deadline) override {
    const absl::Status status = connect(deadline);
    return status.ok() ? store_->put(text, deadline) : status;
  }

  absl::StatusOr<std::optional<std::string>> look(Deadline deadline) override {
    const absl::Status status = connect(deadline);
    if (!status.ok()) return status;
    return store_->look(deadline);
  }

 private:
  absl::Status connect(Deadline deadline) {
    if (store_ != nullptr) return absl::OkStatus();
    // c10d's constructor waits, and logs, for as long as it likes where nobody listens.
    const auto address = TcpAddress::resolve(host_, port_, deadline);
    if (!address.ok()) {
      return absl::Status(
          address.status().code(),
          absl::StrCat("the host is unknown (", std::string(address.status().message()), ")"));
    }
    const auto socket = address->connect(deadline);
    if (!socket.ok()) {
      return absl::Status(
          socket.status().code(),
          absl::StrCat(std::string(socket.status().message()), "; is torchrun there?"));
    }
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port_);
    options.waitWorkers = false;
    options.timeout = bounded(std::chrono::milliseconds(milliseconds_until(deadline)));
    std::string reason = "something accepts connections there, but is no store";
    try {
      auto store = call_until(deadline, [host = host_, options] {
        return Store(c10::make_intrusive<c10d::TCPStore>(host, options));
      });
      if (store) {
        store_ = std::make_unique<StoreBoard>(*std::move(store), key_, "torchrun's store");
        return absl::OkStatus();
      }
    } catch (const std::exception& error) {
      reason = error_text(error);
      reason = reason.substr(0, reason.find('\n'));
    }
    return absl::DeadlineExceededError(
        absl::StrCat("no store answered (", reason, "); is torchrun there?"));
  }

  const std::string host_;
  const int port_;
  const std::string key_;
  std::unique_ptr<StoreBoard> store_;
};

}  // namespace

std::unique_ptr<Board> board_of(Store store) {
  const std::string what =
      absl::StrCat("the ", c10::demangle(typeid(*store).name()), " that was given");
  return std::make_unique<StoreBoard>(std::move(store), kKey, what);
}

std::unique_ptr<Board> board_of_agent(const std::string& host, int port, const std::string& key) {
  return std::make_unique<AgentBoard>(host, port, key);
}

}  // namespace tessera::internal

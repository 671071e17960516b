#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "tessera/core/comm/meeting/connection.h"
#include "tessera/core/comm/meeting/job_table.h"
#include "tessera/core/comm/meeting/server.h"

namespace tessera::internal {

/// Rank 0's side of the table that the ranks of a job share. The table is in rank 0's memory, and a
/// thread of rank 0 answers the other ranks' requests.
class ServedTable final : public JobTable {
 public:
  /// Local. Throws std::runtime_error if the system has no thread left.
  explicit ServedTable(std::unique_ptr<Server> server);
  /// Waits up to a second for the other ranks to disconnect, and answers their requests until then.
  ~ServedTable() override;

 private:
  void serve();

  std::unique_ptr<Server> server_;
  std::atomic<bool> is_to_end_{false};
  std::thread thread_;
};

/// The other ranks' side: each call is a request to rank 0 and waits for its reply, up to
/// `timeout`. After an error, which names rank 0 and its state, every call throws that error.
class RemoteTable final : public SharedTable {
 public:
  RemoteTable(std::unique_ptr<Connection> connection, std::chrono::milliseconds timeout)
      : connection_(std::move(connection)), timeout_(timeout) {}

  Message reply(const Message& request) override;

 private:
  std::mutex mutex_;
  const std::unique_ptr<Connection> connection_;
  const std::chrono::milliseconds timeout_;
  std::string failure_;
};

}  // namespace tessera::internal

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/core/comm/meeting/connection.h"
#include "tessera/core/comm/meeting/job_server.h"
#include "tessera/core/comm/meeting/job_table.h"
#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// The job's table as a c10d store: in the host, which keeps the table and serves the others, and
/// in the members, which send requests. Every call returns within getTimeout(), or throws
/// c10::DistStoreError that names the host, its process and its state, if the host has ended, does
/// not answer or is another program. Thread-safe, except setTimeout().
class JobStore final : public c10d::Store {
 public:
  /// The host's. Throws as JobServer's constructor does.
  JobStore(std::unique_ptr<Listener> listener, const Credentials& credentials, HostProcess self);
  /// A member's.
  explicit JobStore(std::unique_ptr<Connection> connection);
  ~JobStore() override;

  bool is_host() const { return server_ != nullptr; }
  const HostProcess& host() const;

  /// Lets the host set key to value, unless it is set, as soon as this rank is gone, however it
  /// ends. No effect in the host.
  void set_when_gone(const std::string& key, const std::string& value);
  /// In the host: offers a descriptor that members may borrow() as long as it is open. No effect
  /// where members connect over a network.
  void lend(const std::string& key, int fd);
  /// In a member: a duplicate of the descriptor that the host lends; not open if it lends none.
  FileDescriptor borrow(const std::string& key);
  /// In the host: stops listening; the place is free for another job.
  void stop_listening();
  /// In the host: how many connections did not prove to belong to this job; 0 in a member.
  int64_t rejected() const;

  using c10d::Store::compareSet;
  using c10d::Store::set;
  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  Message ask(RequestKind kind, std::vector<std::string> fields);
  [[noreturn]] void fail(const absl::Status& status) const;
  Deadline deadline() const;

  HostProcess self_;
  bool can_lend_ = false;
  std::shared_ptr<JobTable> table_;         // the host's
  std::unique_ptr<JobServer> server_;       // the host's
  std::unique_ptr<Connection> connection_;  // a member's
};

}  // namespace tessera::internal

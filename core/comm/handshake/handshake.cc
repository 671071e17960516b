#include "tessera/core/comm/handshake/handshake.h"

#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/handshake/host_attempt.h"
#include "tessera/core/comm/handshake/member_attempt.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

constexpr const char* kPage = "tessera/page";

/// The page that the processes of one host share.
class SharedPage final : public Transport {
 public:
  SharedPage(JobStore* store, const HandshakeOptions& options)
      : store_(store), rank_(options.rank), world_size_(options.world_size), part_(options.part) {}

  bool is_local() const override { return true; }

  std::string open(const std::vector<int>& pids) override {
    world_ = shm::World::create(pids, rank_, part_);
    if (store_ != nullptr) store_->lend(kPage, world_->segment()->fd());
    return world_->page().to_text();
  }

  void enter(const std::string& text) override {
    const auto range = shm::SharedRange::from_text(text);
    TORCH_CHECK(range.has_value(), "[rendezvous] got '", text,
                "' as the place of the shared page, expected five numbers; run one build of "
                "Tessera on all ranks");
    world_ = shm::World::open(rank_, world_size_, *range,
                              store_ != nullptr ? store_->borrow(kPage) : FileDescriptor());
  }

  std::shared_ptr<shm::World> take_world() { return std::move(world_); }

 private:
  JobStore* const store_;
  const int rank_;
  const int world_size_;
  const shm::PartOfJob& part_;
  std::shared_ptr<shm::World> world_;
};

/// Keys of the store that nothing else uses.
class Prefix final : public Transport {
 public:
  bool is_local() const override { return false; }

  std::string open(const std::vector<int>& /*pids*/) override {
    return text_ = absl::StrCat("tessera/world/", MacKey::new_nonce());
  }

  void enter(const std::string& text) override { text_ = text; }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void hold(const Endpoint& endpoint, const HandshakeOptions& options, Transport& transport) {
  if (endpoint.is_host) {
    HostAttempt(endpoint, options, transport).run();
  } else {
    MemberAttempt(endpoint, options, transport).run();
  }
  endpoint.store->setTimeout(bounded(options.timeout));
}

}  // namespace

std::shared_ptr<shm::World> meet(const Endpoint& endpoint, const HandshakeOptions& options) {
  SharedPage page(endpoint.own, options);
  hold(endpoint, options, page);
  return page.take_world();
}

std::string meet_on_store(const Endpoint& endpoint, const HandshakeOptions& options) {
  Prefix prefix;
  hold(endpoint, options, prefix);
  return prefix.text();
}

}  // namespace tessera::internal

#include "tessera/core/comm/handshake/words.h"

#include <string_view>

#include <c10/util/Exception.h>

namespace tessera::internal {

void Words::say(const std::string& key, const std::string& text) {
  if (!seal_) {
    store_.set(key, text);
    return;
  }
  const Seal::Bytes seal = seal_->make({key, text});
  store_.set(key, std::string(seal.begin(), seal.end()) + text);
}

std::optional<std::string> Words::hear(const std::string& key) {
  // get() of a key that is not there would block, and others with it.
  if (!store_.check({key})) return std::nullopt;
  std::string said = store_.get_to_str(key);
  if (!seal_) return said;
  const std::string_view all = said;
  if (all.size() >= Seal::kBytes &&
      seal_->verify(all.substr(0, Seal::kBytes), {key, all.substr(Seal::kBytes)})) {
    return said.substr(Seal::kBytes);
  }
  if (ignored_.insert(key).second && ignored_.size() == 1) {
    TORCH_WARN("[rendezvous] the store has a text at '", key,
               "' that does not verify: a rank with another TESSERA_JOB_TOKEN or somebody else "
               "wrote it; it is ignored, and so are later ones");
  }
  return std::nullopt;
}

}  // namespace tessera::internal

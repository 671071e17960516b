#include "tessera/core/comm/handshake/handshake_store.h"

#include <string_view>

#include <c10/util/Exception.h>

namespace tessera::internal {

void HandshakeStore::set(const std::string& key, const std::string& text) {
  if (!mac_key_) {
    store_.set(key, text);
    return;
  }
  const MacKey::Bytes mac = mac_key_->compute({key, text});
  store_.set(key, std::string(mac.begin(), mac.end()) + text);
}

std::optional<std::string> HandshakeStore::get(const std::string& key) {
  // The store's get() of a key that is not there would block, and others with it.
  if (!store_.check({key})) return std::nullopt;
  std::string text = store_.get_to_str(key);
  if (!mac_key_) return text;
  const std::string_view all = text;
  if (all.size() >= MacKey::kBytes &&
      mac_key_->verify(all.substr(0, MacKey::kBytes), {key, all.substr(MacKey::kBytes)})) {
    return text.substr(MacKey::kBytes);
  }
  if (ignored_.insert(key).second && ignored_.size() == 1) {
    TORCH_WARN("[rendezvous] the store has a text at '", key,
               "' that does not verify: a rank with another TESSERA_JOB_TOKEN or somebody else "
               "wrote it; it is ignored, and so are later ones");
  }
  return std::nullopt;
}

}  // namespace tessera::internal

#include "tessera/core/access/access_key.h"

#include <c10/core/TensorImpl.h>

#include "tessera/core/access/access_observer.h"

namespace tessera::internal {
namespace {

/// Gives access to a protected member of LibTorch's class.
struct KeysOf : c10::TensorImpl {
  static c10::DispatchKeySet& get(const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->*(&KeysOf::key_set_);
  }
};

}  // namespace

bool add_access_key(const at::Tensor& tensor) {
  if (!observes_keys()) return false;
  KeysOf::get(tensor) = tensor.key_set().add(kAccessKey);
  return true;
}

void remove_access_key(const at::Tensor& tensor) {
  KeysOf::get(tensor) = tensor.key_set().remove(kAccessKey);
}

bool has_access_key(const at::Tensor& tensor) { return tensor.key_set().has(kAccessKey); }

}  // namespace tessera::internal

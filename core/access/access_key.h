#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

namespace tessera::internal {

/// The dispatch key that marks parameters whose accesses are observed. LibTorch reserves it for
/// deferred initialisation outside its tree and has no kernel of its own for it. It lies above
/// autograd and autocast. Note [Access observer] in access_observer.cc.
inline constexpr c10::DispatchKey kAccessKey = c10::DispatchKey::DeferredInit;

/// Puts the key on `tensor`. Views, detach() and data() of `tensor` that are made from now on have
/// it, too; those made before do not. Returns false, and does nothing, if other code of the process
/// (torchdistX, another copy of this library) has registered a kernel for the key. Local, cheap.
/// While an operator of another thread uses `tensor`, it must not be called.
bool add_access_key(const at::Tensor& tensor);

/// Takes the key off `tensor`; its views keep theirs. Operators on them then run as if there were
/// no key, at the cost of a call.
void remove_access_key(const at::Tensor& tensor);

/// Returns true if an access to `tensor` is observed by its key.
bool has_access_key(const at::Tensor& tensor);

}  // namespace tessera::internal

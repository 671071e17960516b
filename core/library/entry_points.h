#pragma once

#include <string>
#include <vector>

namespace tessera::internal {

/// Finds the functions of a library that was opened at run time (dlopen). Remembers missing ones,
/// so that one error can name them all.
class EntryPoints {
 public:
  /// `library` is a handle from dlopen; not null.
  explicit EntryPoints(void* library) : library_(library) {}

  /// Sets `target` to the function of that name; null if the library lacks it.
  template <typename Function>
  void find(Function*& target, const char* name) const {
    target = reinterpret_cast<Function*>(address(name));
  }

  /// Like find(), but adds a function that the library lacks to missing().
  template <typename Function>
  void require(Function*& target, const char* name) {
    find(target, name);
    if (target == nullptr) missing_.emplace_back(name);
  }

  const std::vector<std::string>& missing() const { return missing_; }

 private:
  void* address(const char* name) const;

  void* library_;
  std::vector<std::string> missing_;
};

/// Returns the path at which the loader found `library`; "" if that is unknown or `library` is
/// null.
std::string path_of_library(void* library);

/// Returns the calling thread's last loader error. Never empty.
std::string loader_error();

}  // namespace tessera::internal

#pragma once

#include <string>
#include <vector>

namespace tessera::internal {

/// The functions of a library that was opened at run time (dlopen). Remembers those that it lacks,
/// so that one error can name them all.
class EntryPoints {
 public:
  /// `library`: a handle of dlopen; not null.
  explicit EntryPoints(void* library) : library_(library) {}

  /// Sets `target` to the function of that name, or null.
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

/// Returns where the loader found an open library; "" if that is unknown or `library` null.
std::string path_of_library(void* library);

/// Returns why the loader last refused the calling thread. Never empty.
std::string loader_error();

}  // namespace tessera::internal

#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tessera::internal {

class Member;

/// All groups of one rank that were made from one world. Thread-safe.
class SiblingGroups {
 public:
  void add(std::weak_ptr<Member> member);
  /// Returns the cause of the first group that has failed, in the order of add(); "" if none has.
  std::string cause() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Member>> members_;
};

}  // namespace tessera::internal

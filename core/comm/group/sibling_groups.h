#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tessera::internal {

class Member;

/// The groups that were made of one world, as one rank has them. Thread-safe.
class SiblingGroups {
 public:
  void add(std::weak_ptr<Member> member);
  /// Returns why the first of them that has failed did; "" if none has.
  std::string cause() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Member>> members_;
};

}  // namespace tessera::internal

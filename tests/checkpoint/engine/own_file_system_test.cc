#include "tessera/checkpoint/engine/own_file_system.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/checkpoint/memory_store.h"

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A store that breaks the contract.
class RudeStore final : public MemoryStore {
 public:
  enum class Way : uint8_t { kRight, kThrows, kThrowsAnInt, kSaysNothing };
  Way way = Way::kRight;

  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    misbehave();
    if (way == Way::kSaysNothing) return absl::UnavailableError("");
    return MemoryStore::create(path);
  }
  absl::Status remove_file(const std::string& path) override {
    misbehave();
    return way == Way::kSaysNothing ? absl::UnavailableError("") : MemoryStore::remove_file(path);
  }
  absl::StatusOr<std::vector<std::string>> list(const std::string& path) override {
    auto names = MemoryStore::list(path);
    names->insert(names->begin(), "");  // a folder's marker object
    return names;
  }

 private:
  void misbehave() const {
    if (way == Way::kThrows) throw std::runtime_error("out of sockets");
    if (way == Way::kThrowsAnInt) throw 42;
  }
};

TEST(OwnFileSystem, AnErrorHasAText) {
  const auto store = std::make_shared<RudeStore>();
  const auto files = as_called(store);
  store->way = RudeStore::Way::kSaysNothing;
  for (const absl::Status& status : {files->create("a/b").status(), files->remove_file("a/b")}) {
    EXPECT_TRUE(absl::IsUnavailable(status));
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("[checkpoint] cannot "),
                                                     HasSubstr("'a/b'"), HasSubstr("UNAVAILABLE")));
  }
  store->way = RudeStore::Way::kRight;
  EXPECT_EQ(files->entry("a/b").status().message(), store->entry("a/b").status().message());
}

TEST(OwnFileSystem, AnExceptionIsAnError) {
  const auto store = std::make_shared<RudeStore>();
  const auto files = as_called(store);
  store->way = RudeStore::Way::kThrows;
  EXPECT_THAT(std::string(files->create("a/b").status().message()),
              AllOf(HasSubstr("cannot create 'a/b'"), HasSubstr("out of sockets")));
  store->way = RudeStore::Way::kThrowsAnInt;
  EXPECT_EQ(files->remove_file("a/b").code(), absl::StatusCode::kInternal);
}

TEST(OwnFileSystem, PathsEndWithoutASlashAndNamesAreNotEmpty) {
  const auto store = std::make_shared<RudeStore>();
  const auto files = as_called(store);
  store->put("a/b/c", "bytes");
  EXPECT_THAT(*files->list("a/b//"), ElementsAre("c"));
  EXPECT_TRUE(files->entry("a/b/c/").ok());
  EXPECT_FALSE(files->can_rename());
}

}  // namespace
}  // namespace tessera::internal::testing

// Ranks that meet at each kind of place, and the errors on all of them when they cannot. Ranks are
// threads.
#include "tessera/core/comm/meeting/meeting.h"

#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/core/comm/meeting/address_place.h"
#include "tessera/core/comm/meeting/message.h"
#include "tessera/core/comm/meeting/unix_place.h"
#include "tessera/core/comm/rendezvous/store_place.h"
#include "tessera/core/process/machine.h"
#include "tessera/tests/support/patience.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Counts the ranks that open or enter it.
class Door final : public Transport {
 public:
  bool is_local() const override { return is_local_; }
  absl::StatusOr<std::string> open(const std::vector<int>& pids) override {
    if (!fails.empty()) return absl::InternalError(fails);
    opened_for = pids;
    return "the door";
  }
  absl::Status enter(const std::string& text) override {
    if (!fails.empty()) return absl::InternalError(fails);
    entered = text;
    return absl::OkStatus();
  }

  bool is_local_ = true;
  std::string fails;
  std::vector<int> opened_for;
  std::string entered;
};

struct Rank {
  int rank = 0;
  int world_size = 2;
  std::string token = {};
  milliseconds timeout = testing::kPatience;  // must not be reached
  std::string device = "cpu";
  std::string fails = {};  // error of its door
  std::function<void(Hello&)> disguise = {};
};

/// Makes a rank's view of a common place.
using MakePlace = std::function<std::unique_ptr<Place>(const Rank&)>;

void ignore_text(const std::string& /*text*/) {}

MeetingOptions options_of(const Rank& rank) {
  MeetingOptions options{
      .own = Hello::of_this_process(rank.rank, rank.world_size, rank.device, "test"),
      .timeout = rank.timeout,
      .warn = ignore_text,
      .report = [](int /*culprit*/, const std::string& /*cause*/) {}};
  if (rank.disguise) rank.disguise(options.own);
  return options;
}

/// Returns this rank's error; "" if it meets the others.
std::string error_of(const MakePlace& make_place, const Rank& rank) {
  try {
    Door door;
    door.fails = rank.fails;
    const auto place = make_place(rank);
    const Meeting meeting(*place, door, options_of(rank));
    EXPECT_EQ(door.entered, rank.rank == 0 ? "" : "the door");
    EXPECT_EQ(door.opened_for.size(), rank.rank == 0 ? static_cast<size_t>(rank.world_size) : 0);
  } catch (const MeetingFailure& failure) {
    return failure.cause;
  }
  return "";
}

std::vector<std::string> errors_of(const MakePlace& make_place, const std::vector<Rank>& ranks) {
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] { errors[i] = error_of(make_place, ranks[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

class MeetingTest : public ::testing::Test {
 protected:
  MakePlace at_path() const {
    return [this](const Rank& rank) {
      return std::make_unique<UnixPlace>(directory_.path() + "/job", "the path",
                                         Credentials{.token = rank.token});
    };
  }

  MakePlace at_address() const {
    return [port = testing::free_port()](const Rank& rank) {
      return std::make_unique<AddressPlace>("127.0.0.1", port, "MASTER_ADDR and MASTER_PORT",
                                            Credentials{.token = rank.token}, ignore_text);
    };
  }

  MakePlace by_store(bool is_one_host = true) const {
    return [this, is_one_host](const Rank& rank) {
      return std::make_unique<StorePlace>(
          store_, StorePlace::Options{.text = "the store",
                                      .credentials = Credentials{.token = rank.token},
                                      .is_one_host = is_one_host,
                                      .key = "note"});
    };
  }

  const StorePlace::Store store_ = c10::make_intrusive<c10d::HashStore>();
  const testing::TemporaryDirectory directory_;
};

TEST_F(MeetingTest, Case31RanksMeetAgainAndAgainAtEachKindOfPlace) {
  for (const MakePlace& place : {at_path(), at_address(), by_store(), by_store(false)}) {
    for (int again = 0; again < 5; ++again) {
      EXPECT_THAT(errors_of(place, {{0, 1}}), Each(IsEmpty()));
      EXPECT_THAT(errors_of(place, {{2, 3}, {1, 3}, {0, 3}}), Each(IsEmpty()));
      EXPECT_THAT(errors_of(place, {{.rank = 0, .token = "ours"}, {.rank = 1, .token = "ours"}}),
                  Each(IsEmpty()));
    }
  }
}

TEST_F(MeetingTest, RanksMeetAtANameThatAllKnow) {
  const std::string name = absl::StrCat("tessera-test/", MacKey::new_nonce());
  const MakePlace place = [&](const Rank& /*rank*/) { return std::make_unique<UnixPlace>(name); };
  EXPECT_THAT(errors_of(place, {{0, 3}, {1, 3}, {2, 3}}), Each(IsEmpty()));
  EXPECT_THAT(error_of(place, {.rank = 1, .timeout = milliseconds(200)}),
              HasSubstr("nobody listens"));
}

// Each rank retries at once after a failure: others may not have heard of the failure yet.
TEST_F(MeetingTest, WhoTriesAgainAtOnceMeetsTheOthers) {
  const MakePlace place = by_store();
  for (int again = 0; again < 20; ++again) {
    std::vector<std::thread> threads;
    threads.reserve(3);
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&place, rank] {
        const std::string device = rank == 1 ? "cuda" : "cpu";
        EXPECT_THAT(error_of(place, {.rank = rank, .world_size = 3, .device = device}),
                    HasSubstr("rank 1 has the device cuda"));
        EXPECT_THAT(error_of(place, {.rank = rank, .world_size = 3}), IsEmpty());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(MeetingTest, Case31WhatStandsInAStoreAlreadyIsIgnored) {
  const MakePlace place = by_store();
  EXPECT_THAT(errors_of(place, {{0}, {1}}), Each(IsEmpty()));
  const std::string old = store_->get_to_str("note");
  for (const std::string& text : {old, old.substr(1), std::string(), std::string("x"),
                                  std::string(1 << 20, 'x'), std::string(9, '\n')}) {
    store_->set("note", text);
    EXPECT_THAT(errors_of(place, {{0}, {1}}), Each(IsEmpty())) << text.substr(0, 50);
  }
}

TEST_F(MeetingTest, Case32WhatOthersWriteInAStoreLeadsNobodyAstray) {
  // A foreign process of this user listens and writes a note with a guessed secret.
  Rank stranger{.rank = 0, .token = "guess", .timeout = milliseconds(1000)};
  std::thread liar([&] { error_of(by_store(), stranger); });
  while (!store_->check({"note"})) std::this_thread::yield();
  EXPECT_THAT(error_of(by_store(), {.rank = 1, .token = "secret", .timeout = milliseconds(300)}),
              HasSubstr("does not verify: somebody else wrote it"));
  EXPECT_THAT(
      errors_of(by_store(), {{.rank = 0, .token = "secret"}, {.rank = 1, .token = "secret"}}),
      Each(IsEmpty()));
  liar.join();
}

TEST_F(MeetingTest, Case32ATokenThatDiffersIsTold) {
  for (const MakePlace& place : {at_path(), at_address()}) {
    const auto errors =
        errors_of(place, {{.rank = 0, .token = "ours", .timeout = milliseconds(3000)},
                          {.rank = 1, .token = "theirs", .timeout = milliseconds(3000)}});
    EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1 did not come to "),
                                 HasSubstr("did not prove to belong to this job")));
    EXPECT_THAT(errors[1], HasSubstr("does not accept this rank as one of its job"));
  }
}

TEST_F(MeetingTest, WhatOneRankRefusesAllHear) {
  for (const MakePlace& place : {at_path(), by_store()}) {
    EXPECT_THAT(errors_of(place, {{0, 2}, {1, 3}}), Each(HasSubstr("rank 1 has WORLD_SIZE 3")));
    EXPECT_THAT(errors_of(place, {{0, 3}, {1, 3}, {1, 3}}),
                Each(HasSubstr("RANK 1 was given twice")));
  }
}

TEST_F(MeetingTest, TwoRankZerosHearOfEachOther) {
  for (const MakePlace& place : {at_path(), at_address()}) {
    std::vector<std::string> errors(2);
    std::thread first([&] { errors[0] = error_of(place, {.rank = 0}); });
    // The second rank comes when the first listens; no rank is rank 1.
    const auto probe = place({.rank = 1});
    while (!probe->connect(Deadline::max()).ok()) std::this_thread::yield();
    errors[1] = error_of(place, {.rank = 0});
    first.join();
    EXPECT_THAT(errors, Each(HasSubstr("RANK 0 was given twice")));
  }
}

TEST_F(MeetingTest, Case30AnotherBuildIsNamed) {
  const auto errors = errors_of(
      at_path(), {{.rank = 0}, {.rank = 1, .disguise = [](Hello& own) { own.build = "older"; }}});
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 1 has a build of older where rank 0 has "),
                                 HasSubstr("; run one build of Tessera on all ranks"))));
}

TEST_F(MeetingTest, RanksOfSeveralHostsThatNeedOneMemoryAreToldToTakeMpi) {
  const auto leaves = [](Hello& own) {
    own.host = "another boot, another namespace";
    own.host_name = "node7";
  };
  EXPECT_THAT(
      errors_of(at_address(), {{0, 3}, {1, 3}, {.rank = 2, .world_size = 3, .disguise = leaves}}),
      Each(HasSubstr(absl::StrCat(
          "rank 2 has the host or container node7 where rank 0 has ", machine_name(),
          " (another machine or PID namespace) and shares no memory with it: CPUs of several hosts "
          "communicate by MPI; start the ranks with mpirun or srun"))));
}

TEST_F(MeetingTest, WhoCannotOpenOrEnterTellsAll) {
  EXPECT_THAT(
      errors_of(at_path(), {{.rank = 0, .world_size = 3, .fails = "no memory"}, {1, 3}, {2, 3}}),
      Each(HasSubstr("rank 0 failed: no memory")));
  const auto errors =
      errors_of(at_path(), {{0, 3}, {1, 3}, {.rank = 2, .world_size = 3, .fails = "no memory"}});
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 2 (pid "), HasSubstr("gave up: no memory")));
  EXPECT_EQ(errors[1], errors[0]);
  EXPECT_THAT(errors[2], HasSubstr("no memory"));
}

// Whichever time-out ends first, all ranks give its reason.
TEST_F(MeetingTest, Case29MissingRanksAreNamedByAll) {
  for (const int first : {0, 2}) {
    std::vector<Rank> ranks = {{0, 4}, {2, 4}};
    ranks[first == 0 ? 0 : 1].timeout = milliseconds(1500);
    EXPECT_THAT(errors_of(at_path(), ranks),
                Each(HasSubstr("timed out after 1500 ms: rank 1, rank 3 did not come to ")));
  }
  EXPECT_THAT(error_of(at_path(), {.rank = 1, .timeout = milliseconds(200)}),
              AllOf(HasSubstr("timed out after 200 ms: "),
                    HasSubstr("nobody listens; is rank 0 on this host?")));
}

TEST_F(MeetingTest, WhoCameAndIsSilentIsNamedWithItsProcess) {
  const std::string pid = absl::StrCat("(pid ", ::getpid(), ")");
  // A member that does not enter.
  std::string error;
  std::thread server(
      [&] { error = error_of(at_path(), {.rank = 0, .timeout = milliseconds(1500)}); });
  const auto place = at_path()({});
  absl::StatusOr<FileDescriptor> socket = place->connect({});
  while (!socket.ok()) socket = place->connect({});
  const auto member = Connection::enter(
      *std::move(socket), {}, Hello::of_this_process(1, 2, "cpu", "test"), Deadline::max());
  server.join();
  EXPECT_THAT(error, HasSubstr("not all of them finished connecting: rank 1 " + pid));
  // A rank 0 that does not answer.
  const Server silent(place->listen({}).value(), {}, Hello::of_this_process(0, 2, "cpu", "test"),
                      ignore_text);
  EXPECT_THAT(error_of(at_path(), {.rank = 1, .timeout = milliseconds(300)}),
              AllOf(HasSubstr("rank 0 " + pid), HasSubstr("does not answer")));
}

TEST_F(MeetingTest, Case31AGoToWhoHasNotEnteredIsNotBelieved) {
  const auto place = at_path()({});
  Server liar(place->listen({}).value(), {}, Hello::of_this_process(0, 2, "cpu", "test"),
              ignore_text);
  std::string error;
  std::thread member(
      [&] { error = error_of(at_path(), {.rank = 1, .timeout = milliseconds(500)}); });
  bool has_left = false;
  while (!has_left) {
    for (const Server::Event& event : liar.serve(milliseconds(100))) {
      has_left = !event.message.has_value();
      liar.send(event.member, Message::of(MessageKind::kGo));
    }
  }
  member.join();
  EXPECT_THAT(error, HasSubstr("timed out after 500 ms: no answer from rank 0"));
}

TEST_F(MeetingTest, WhoMetMayShareATable) {
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([this, rank] {
      Door door;
      const auto place = at_path()({});
      auto table = Meeting(*place, door, options_of({.rank = rank, .world_size = 3}))
                       .make_table(testing::kPatience);
      table->set(absl::StrCat("from ", rank), "x");
      while (!table->has({"from 0", "from 1", "from 2"})) std::this_thread::yield();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tessera::internal

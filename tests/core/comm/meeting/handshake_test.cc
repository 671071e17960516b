// Ranks that meet in a store that anybody may write to: what stands there, and what others do to
// it. Ranks are threads.
#include "tessera/core/comm/handshake/handshake.h"

#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/core/comm/handshake/hello.h"
#include "tessera/core/comm/meeting/mac_key.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/machine.h"
#include "tessera/tests/support/forked_child.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/patience.h"

namespace tessera::internal {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Rank {
  int rank = 0;
  int world_size = 2;
  std::string token = {};
  milliseconds timeout = testing::kPatience;  // what must not come to it
  std::string device = "cuda";  // no shared page, so ranks may seem to be on other hosts
  bool shares_memory = false;
};

/// What this rank throws; "" if it meets the others.
std::string error_of(const c10::intrusive_ptr<c10d::Store>& store, const Rank& rank) {
  EndpointOptions options;
  options.environment.rank = rank.rank;
  options.store = store;
  options.timeout = rank.timeout;
  try {
    const Endpoint endpoint = find_endpoint(options);
    const HandshakeOptions own{.rank = rank.rank,
                               .world_size = rank.world_size,
                               .job_token = rank.token,
                               .timeout = rank.timeout,
                               .device = rank.device};
    if (rank.shares_memory) {
      meet(endpoint, own);
    } else {
      meet_on_store(endpoint, own);
    }
  } catch (const std::exception& error) {
    return error_text(error);
  }
  return "";
}

/// The same of each of these.
std::vector<std::string> errors_of(const c10::intrusive_ptr<c10d::Store>& store,
                                   const std::vector<Rank>& ranks) {
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] { errors[i] = error_of(store, ranks[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

class HandshakeTest : public ::testing::Test {
 protected:
  std::vector<std::string> errors_of(const std::vector<Rank>& ranks) {
    return tessera::internal::errors_of(store_, ranks);
  }
  c10d::Store& store() { return *store_; }

  /// A rank of another machine, with or without a heart.
  static Hello stranger(int rank, int world_size) {
    Hello hello = Hello::of_this_process(rank, world_size, "", "cuda");
    hello.host = "another boot, another namespace";
    hello.host_name = "node7";
    return hello;
  }
  void post(const Hello& hello, int at) {
    store().set(absl::StrCat("tessera/hello/", at), hello.to_text());
  }

  const c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
};

TEST_F(HandshakeTest, Case31RanksMeetAgainAndAgainInOneStore) {
  for (int again = 0; again < 3; ++again) {
    EXPECT_THAT(errors_of({{0, 3}, {1, 3}, {2, 3}}), Each(IsEmpty()));
  }
}

// Each rank tries again as soon as it has failed: others may not have heard of the failure yet.
TEST_F(HandshakeTest, WhoTriesAgainAtOnceMeetsTheOthers) {
  for (int again = 0; again < 20; ++again) {
    std::vector<std::thread> threads;
    threads.reserve(3);
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([this, rank] {
        const bool differs = rank == 1;
        EXPECT_THAT(
            error_of(store_, {.rank = rank, .world_size = 3, .device = differs ? "cpu" : "cuda"}),
            HasSubstr("rank 1 has the device cpu"));
        EXPECT_THAT(error_of(store_, {.rank = rank, .world_size = 3}), IsEmpty());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(HandshakeTest, Case31ADeadRankOfAnotherHostBlocksNoOtherAttempt) {
  post(stranger(1, 2), 1);
  EXPECT_THAT(errors_of({{0}, {1}}), Each(IsEmpty()));
}

TEST_F(HandshakeTest, Case31WhatIsNoHelloIsIgnored) {
  std::vector<std::string> texts = {"", "x", std::string(1 << 20, 'x'), std::string(9, '\n')};
  for (const int rank : {-1, 2, 50000000, 2147483647}) {
    Hello hello = stranger(0, 2);
    hello.rank = rank;
    texts.push_back(hello.to_text());
    EXPECT_FALSE(Hello::from_text(texts.back())) << rank;
  }
  Hello wide = stranger(1, 2);
  wide.world_size = 2147483647;
  texts.push_back(wide.to_text());
  for (const std::string& text : texts) {
    // Said between a rank's own words and the host's look, too: the rank says its own again.
    store().set("tessera/hello/0", text);
    store().set("tessera/hello/1", text);
    EXPECT_THAT(errors_of({{0}, {1}}), Each(IsEmpty())) << text.substr(0, 50);
  }
  store().add("tessera/members", 1000000000000);
  EXPECT_THAT(errors_of({{0}, {1}}), Each(IsEmpty()));
}

TEST_F(HandshakeTest, Case32ForgedAnswersAreIgnoredWhereThereIsAToken) {
  // A stranger that answers every rank at once, in all the ways that there are.
  std::atomic<bool> is_over{false};
  std::thread stranger([&] {
    while (!is_over.load()) {
      for (const int rank : {0, 1}) {
        const std::string key = absl::StrCat("tessera/hello/", rank);
        if (!store().check({key})) continue;
        const std::string text = store().get_to_str(key);
        if (text.size() <= MacKey::kBytes) continue;
        const auto hello = Hello::from_text(text.substr(MacKey::kBytes));
        if (!hello) continue;
        store().set("tessera/answer/" + hello->nonce, std::string("failure\nEVIL"));
        store().set("tessera/mark/" + hello->nonce, std::string("failed: EVIL"));
      }
      std::this_thread::yield();
    }
  });
  for (int again = 0; again < 5; ++again) {
    const auto errors = errors_of({{.rank = 0, .token = "secret", .timeout = milliseconds(300)},
                                   {.rank = 1, .token = "secret", .timeout = milliseconds(300)}});
    // A stranger can prevent a start, by writing over what ranks say, and never forge one.
    for (const std::string& error : errors) EXPECT_FALSE(absl::StrContains(error, "EVIL")) << error;
  }
  is_over.store(true);
  stranger.join();
}

TEST_F(HandshakeTest, Case32ATokenThatDiffersIsAMissingRank) {
  const auto errors = errors_of({{.rank = 0, .token = "ours", .timeout = milliseconds(2000)},
                                 {.rank = 1, .token = "theirs", .timeout = milliseconds(2000)}});
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1 did not come"), HasSubstr("TESSERA_JOB_TOKEN")));
  EXPECT_THAT(errors[1], HasSubstr("rank 0 did not come"));
}

TEST_F(HandshakeTest, WhatOneRankRefusesAllHear) {
  EXPECT_THAT(errors_of({{0, 2}, {1, 3}}), Each(HasSubstr("rank 1 has WORLD_SIZE 3")));
  EXPECT_THAT(errors_of({{0, 3}, {1, 3}, {1, 3}}), Each(HasSubstr("RANK 1 was given twice")));
}

TEST_F(HandshakeTest, Case30AnotherBuildIsNamed) {
  Hello other = Hello::of_this_process(1, 2, "", "cuda");
  const std::string own = other.build;
  other.build = "protocol 0";
  post(other, 1);
  EXPECT_THAT(errors_of({{0}})[0],
              HasSubstr(absl::StrCat("rank 1 has a build of protocol 0 where rank 0 has ", own,
                                     "; run one build of Tessera on all ranks")));
}

TEST_F(HandshakeTest, RanksOfSeveralHostsThatNeedOneMemoryAreToldToTakeMpi) {
  Hello other = stranger(2, 3);
  other.device = "cpu";
  post(other, 2);
  std::atomic<bool> is_over{false};
  std::thread heart([&] {
    for (int beats = 1; !is_over.load(); ++beats) {
      store().set("tessera/beat/" + other.nonce, std::to_string(beats));
      std::this_thread::yield();
    }
  });
  const auto errors =
      errors_of({{.rank = 0, .world_size = 3, .device = "cpu", .shares_memory = true},
                 {.rank = 1, .world_size = 3, .device = "cpu", .shares_memory = true}});
  is_over.store(true);
  heart.join();
  const auto refuses = HasSubstr(
      absl::StrCat("rank 2 has the host or container node7 where rank 0 has ", machine_name(),
                   " and shares no memory with it: CPUs of several hosts "
                   "communicate by MPI; start the ranks with mpirun or srun (backend "
                   "'mpi'), or all of them on one host"));
  EXPECT_THAT(errors, Each(refuses));
  EXPECT_THAT(store().get_to_str("tessera/answer/" + other.nonce), refuses) << "what rank 2 reads";
}

TEST_F(HandshakeTest, OfTwoRankZerosOneAtMostMeetsTheOthers) {
  for (int again = 0; again < 3; ++again) {  // each may take a time-out
    const milliseconds patience(10000);      // no time-out may fall between two answers
    const auto errors = errors_of({{.rank = 0, .timeout = patience},
                                   {.rank = 0, .timeout = patience},
                                   {.rank = 1, .timeout = patience}});
    const int hosts = (errors[0].empty() ? 1 : 0) + (errors[1].empty() ? 1 : 0);
    EXPECT_EQ(hosts, errors[2].empty() ? 1 : 0) << ::testing::PrintToString(errors);
    for (const int host : {0, 1}) {
      if (errors[host].empty()) continue;
      // One that came after the others had met, in their process, knows of nobody; at its time-out
      // it has half a second for a call of the store, which a busy machine may take longer for.
      EXPECT_THAT(errors[host],
                  AnyOf(HasSubstr("RANK 0 was given twice"), HasSubstr("rank 1 did not come"),
                        HasSubstr("that was given has not answered")));
    }
  }
}

// Another rank 0 has admitted rank 1, too, and says so when that has met the first one.
TEST_F(HandshakeTest, WhoHasEnteredListensToThatHostAlone) {
  for (const std::string late : {"enter\nanother rank 0\nits transport", "failure\nanother's"}) {
    std::atomic<bool> is_over{false};
    std::thread other([&] {
      while (!is_over.load()) {
        const std::string text =
            store().check({"tessera/hello/1"}) ? store().get_to_str("tessera/hello/1") : "";
        const auto hello = Hello::from_text(text);
        if (hello && store().check({"tessera/mark/" + hello->nonce})) {
          store().set("tessera/answer/" + hello->nonce, late);
        }
      }
    });
    EXPECT_THAT(errors_of({{.rank = 0}, {.rank = 1, .timeout = milliseconds(5000)}}),
                Each(IsEmpty()));
    is_over.store(true);
    other.join();
  }
}

// The search for the place and the meeting there have one time-out together.
TEST_F(HandshakeTest, TheTimeOutBeganWithTheSearch) {
  EndpointOptions options;
  options.store = store_;
  options.timeout = std::chrono::hours(10);
  Endpoint endpoint = find_endpoint(options);
  endpoint.since -= std::chrono::hours(11);
  EXPECT_THAT(testing::message_of([&] {
                meet_on_store(endpoint, {.rank = 0,
                                         .world_size = 2,
                                         .job_token = {},
                                         .timeout = options.timeout,
                                         .device = "cuda"});
              }),
              HasSubstr("timed out after 36000000 ms: rank 1 did not come"));
}

// Rank 0 has said where its page is, and ended before rank 1 could open it.
TEST_F(HandshakeTest, AHostThatEndsBeforeItsPageIsOpenedIsNamed) {
  const auto child = testing::run_in_fork([] { return std::to_string(::getpid()); });
  Hello host = Hello::of_this_process(0, 2, "", "cpu");
  host.pid = std::stoi(child.text);
  post(host, 0);
  std::atomic<bool> is_over{false};
  std::thread answers([&] {
    while (!is_over.load()) {
      const std::string text =
          store().check({"tessera/hello/1"}) ? store().get_to_str("tessera/hello/1") : "";
      const auto hello = Hello::from_text(text);
      if (hello) {
        store().set("tessera/answer/" + hello->nonce,
                    absl::StrCat("enter\n", host.nonce, "\n1 2 4096 ", host.pid, " 3"));
      }
      std::this_thread::yield();
    }
  });
  EndpointOptions options;
  options.environment.rank = 1;
  options.store = store_;
  options.timeout = testing::kPatience;
  const Endpoint endpoint = find_endpoint(options);
  const std::string error = testing::message_of([&] {
    meet(endpoint, {.rank = 1, .world_size = 2, .job_token = {}, .timeout = options.timeout});
  });
  is_over.store(true);
  answers.join();
  EXPECT_THAT(error,
              HasSubstr(absl::StrCat("rank 0 (pid ", host.pid, ") died before all ranks had met")));
}

TEST_F(HandshakeTest, WhoCameAndIsSilentIsNamedWithItsProcess) {
  const std::string pid = absl::StrCat("(pid ", ::getpid(), "), which ");
  post(Hello::of_this_process(0, 2, "", "cuda"), 0);
  EXPECT_THAT(errors_of({{.rank = 1, .timeout = milliseconds(300)}})[0],
              HasSubstr("all ranks came, but no answer from rank 0 " + pid));
  post(Hello::of_this_process(1, 2, "", "cuda"), 1);
  EXPECT_THAT(errors_of({{.rank = 0, .timeout = milliseconds(300)}})[0],
              HasSubstr("not all of them finished connecting: rank 1 " + pid));
}

TEST_F(HandshakeTest, ARankThatGivesUpIsToldToAll) {
  const auto errors = errors_of(
      {{.rank = 0, .world_size = 3}, {.rank = 1, .world_size = 3, .timeout = milliseconds(1500)}});
  EXPECT_THAT(errors[1], HasSubstr("timed out after 1500 ms: rank 2 did not come"));
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1"), HasSubstr("gave up: timed out after 1500 ms")));
}

TEST_F(HandshakeTest, Case31AStoreThatSaysGoToWhoHasNotEnteredIsNotBelieved) {
  std::atomic<bool> is_over{false};
  std::thread liar([&] {
    while (!is_over.load()) {
      if (store().check({"tessera/hello/1"})) {
        const auto hello = Hello::from_text(store().get_to_str("tessera/hello/1"));
        if (hello) store().set("tessera/answer/" + hello->nonce, std::string("go"));
      }
      std::this_thread::yield();
    }
  });
  const auto errors = errors_of({{.rank = 1, .timeout = milliseconds(200)}});
  is_over.store(true);
  liar.join();
  EXPECT_THAT(errors[0], HasSubstr("rank 0 did not come"));
}

TEST_F(HandshakeTest, Case29MissingRanksAreNamedByAll) {
  EXPECT_THAT(errors_of({{.rank = 0, .world_size = 4, .timeout = milliseconds(1500)},
                         {.rank = 2, .world_size = 4, .timeout = milliseconds(1500)}}),
              Each(HasSubstr("timed out after 1500 ms: rank 1, rank 3 did not come")));
}

}  // namespace
}  // namespace tessera::internal

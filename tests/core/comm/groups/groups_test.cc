// Subgroups, meshes, several groups at once, asynchronous lanes, and misuse, which throws before
// anything is sent.
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/device_mesh.h"
#include "tessera/process_group.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_expecting_errors;
using Lane = ProcessGroupOptions::Lane;

int64_t sum_of_ranks(ProcessGroup& group, int64_t value) {
  at::Tensor tensor = at::full({1}, value, at::kLong);
  group.all_reduce(tensor, ReduceOp::kSum)->wait();
  return tensor.item<int64_t>();
}

TEST(Groups, SubgroupHasItsOwnRanksAndSequence) {
  for (const Lane lane : {Lane::kInline, Lane::kThread}) {
    run_ranks(4,
              [](std::shared_ptr<ProcessGroup> world) {
                auto odd = world->subgroup({1, 3}, "odd");
                auto three = world->subgroup({0, 2, 3}, "three");
                EXPECT_EQ(odd != nullptr, world->rank() % 2 == 1);
                if (odd != nullptr) {
                  EXPECT_EQ(odd->name(), "world/odd");
                  EXPECT_EQ(odd->size(), 2);
                  EXPECT_EQ(odd->rank(), world->rank() / 2);
                  for (int i = 0; i < world->rank() * 0 + 5; ++i) {
                    EXPECT_EQ(sum_of_ranks(*odd, world->rank()), 4);
                  }
                }
                if (three != nullptr) {
                  auto two = three->subgroup({1, 2}, "two");
                  if (two != nullptr) {
                    EXPECT_EQ(two->name(), "world/three/two");
                    EXPECT_EQ(sum_of_ranks(*two, world->rank()), 5);
                  }
                  EXPECT_EQ(sum_of_ranks(*three, world->rank()), 5);
                }
                EXPECT_EQ(sum_of_ranks(*world, 1), 4);
              },
              {.lane = lane});
  }
}

TEST(Groups, SubgroupsOutliveTheirParent) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    auto copy = duplicate(*world, "copy");
    const int rank = world->rank();
    world.reset();
    EXPECT_EQ(sum_of_ranks(*copy, rank), 3);
  });
}

TEST(Groups, TensorsOutliveTheirGroup) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> world) {
    at::Tensor tensor = world->allocate(1000, at::kFloat);
    tensor.fill_(world->rank());
    world->broadcast(tensor, 1)->wait();
    world.reset();
    tensor.add_(1);
    EXPECT_EQ(tensor.sum().item<float>(), 2000.0f);
  });
}

TEST(Groups, SplitMakesOneGroupOfEachColour) {
  run_ranks(5, [](std::shared_ptr<ProcessGroup> world) {
    const std::vector<int> colors = {7, -1, 7, -1, 7};
    auto part = split(*world, colors, "parts");
    const bool odd = world->rank() % 2 == 1;
    EXPECT_EQ(part->name(), odd ? "world/parts -1" : "world/parts 7");
    EXPECT_EQ(part->size(), odd ? 2 : 3);
    EXPECT_EQ(part->rank(), world->rank() / 2);
    EXPECT_EQ(sum_of_ranks(*part, world->rank()), odd ? 4 : 6);
    EXPECT_EQ(split(*part, std::vector<int>(part->size(), 0), "all")->size(), part->size());
    const std::vector<int> apart = {4, 3, 2, 1, 0};
    auto alone = split(*world, apart, "alone");
    EXPECT_EQ(alone->size(), 1);
    EXPECT_EQ(alone->name(), "world/alone " + std::to_string(4 - world->rank()));
  });
  run_ranks(1, [](std::shared_ptr<ProcessGroup> world) {
    EXPECT_EQ(split(*world, {9}, "parts")->name(), "world/parts 9");
  });
}

TEST(Groups, SplitRefusesWrongAndUnequalColours) {
  EXPECT_THAT(run_ranks_expecting_errors(3,
                                         [](std::shared_ptr<ProcessGroup> world) {
                                           split(*world, {0, 1}, "parts");
                                         }),
              Each(HasSubstr("[comm] split 'parts': got 2 colours, expected 3, one for each rank "
                             "of group 'world'")));
  EXPECT_THAT(run_ranks_expecting_errors(3,
                                         [](std::shared_ptr<ProcessGroup> world) {
                                           const int last = world->rank() == 2 ? 2 : 1;
                                           split(*world, {0, 1, last}, "parts");
                                         }),
              Each(HasSubstr("rank 2 called subgroup 'parts 1 [1]' where rank 0 called subgroup "
                             "'parts 1 [1, 2]'")));
}

TEST(Groups, SayWhetherTheyRunInTheBackground) {
  for (const int size : {1, 2}) {
    for (const Lane lane : {Lane::kInline, Lane::kThread}) {
      run_ranks(size,
                [&](std::shared_ptr<ProcessGroup> world) {
                  const bool wanted = lane == Lane::kThread && world->backend() != "loopback";
                  EXPECT_EQ(world->can().in_background, wanted);
                  EXPECT_EQ(duplicate(*world, "copy")->can().in_background, wanted);
                },
                {.lane = lane});
    }
  }
}

TEST(Groups, MeshGroupsFollowRowsAndColumns) {
  run_ranks(6, [](std::shared_ptr<ProcessGroup> world) {
    const DeviceMesh mesh = DeviceMesh::create(*world, 2, 3, {"replicate", "shard"});
    EXPECT_EQ(mesh.row(), world->rank() / 3);
    EXPECT_EQ(mesh.column(), world->rank() % 3);
    EXPECT_EQ(mesh.group(0)->size(), 2);
    EXPECT_EQ(mesh.group("shard")->size(), 3);
    EXPECT_EQ(mesh.group("replicate")->rank(), mesh.row());
    EXPECT_EQ(mesh.group(1)->rank(), mesh.column());
    EXPECT_EQ(sum_of_ranks(*mesh.group(0), world->rank()), 2 * mesh.column() + 3);
    EXPECT_EQ(sum_of_ranks(*mesh.group(1), world->rank()), 9 * mesh.row() + 3);
  });
}

TEST(Groups, MeshRefusesWrongShapesAndNames) {
  EXPECT_THAT(run_ranks_expecting_errors(3,
                                         [](std::shared_ptr<ProcessGroup> world) {
                                           DeviceMesh::create(*world, 2, 2, {"a", "b"});
                                         }),
              Each(HasSubstr("[mesh] create: got 2 rows of 2 columns, expected a product of 3")));
  EXPECT_THAT(run_ranks_expecting_errors(2,
                                         [](std::shared_ptr<ProcessGroup> world) {
                                           DeviceMesh::create(*world, 2, 1, {"a", "a"});
                                         }),
              Each(HasSubstr("expected two different ones")));
  EXPECT_THAT(run_ranks_expecting_errors(2,
                                         [](std::shared_ptr<ProcessGroup> world) {
                                           DeviceMesh::create(*world, 2, 1, {"a", "b"}).group("c");
                                         }),
              Each(HasSubstr("[mesh] group: got the name 'c', expected 'a' or 'b'")));
}

TEST(Groups, AsynchronousWorkRunsInOrderWhileTheCallerGoesOn) {
  run_ranks(3,
            [](std::shared_ptr<ProcessGroup> world) {
              auto other = duplicate(*world, "other");
              std::vector<at::Tensor> tensors;
              std::vector<std::shared_ptr<Work>> works;
              for (int i = 0; i < 50; ++i) {
                tensors.push_back(i % 2 == 0 ? world->allocate(1000 + i, at::kFloat)
                                             : at::empty({1000 + i}, at::kFloat));
                tensors[i].fill_(world->rank() + i);
                works.push_back((i % 3 == 0 ? other : world)
                                    ->all_reduce(tensors[i], ReduceOp::kSum, std::to_string(i)));
              }
              world->barrier();
              for (int i = 49; i >= 0; --i) {
                works[i]->wait();
                works[i]->wait();
                EXPECT_TRUE(works[i]->is_completed());
                EXPECT_EQ(tensors[i][i].item<float>(), 3.0f + 3 * i);
              }
            },
            {.lane = Lane::kThread});
}

TEST(Groups, TwoThreadsOfARankUseTwoGroupsAtOnce) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    auto other = duplicate(*world, "other");
    int64_t sum = 0;
    std::thread second([&] {
      for (int i = 0; i < 300; ++i) sum += sum_of_ranks(*other, i);
    });
    for (int i = 0; i < 200; ++i) EXPECT_EQ(sum_of_ranks(*world, 1), 3);
    second.join();
    EXPECT_EQ(sum, 3 * 300 * 299 / 2);
  });
}

TEST(Groups, WorldsInSequenceAndSideBySide) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> first) {
    EXPECT_EQ(sum_of_ranks(*first, 1), 2);
    const auto parts = duplicate(*first, "again");
    EXPECT_EQ(sum_of_ranks(*parts, 2), 4);
  });
  run_ranks(2,
            [](std::shared_ptr<ProcessGroup> second) { EXPECT_EQ(sum_of_ranks(*second, 1), 2); });
}

TEST(Groups, FingerprintsNameTheFirstDifferenceOnEveryRank) {
  for (const int size : {1, 2, 3}) {
    run_ranks(size, [](std::shared_ptr<ProcessGroup> world) {
      require_equal(*world, {}, "nothing");
      require_equal(*world, {"a", "", "c"}, "same");
    });
  }
  const auto errors = run_ranks_expecting_errors(3, [](std::shared_ptr<ProcessGroup> world) {
    std::vector<std::string> lines = {"weight [3, 2]", "bias [3]"};
    if (world->rank() == 1) lines[1] = "bias [4]";
    if (world->rank() == 2) lines.push_back("scale []");
    require_equal(*world, lines, "parallelize");
  });
  EXPECT_THAT(errors, Each(HasSubstr("[parallelize] rank 1 differs from rank 0 at entry 1: "
                                     "'bias [4]' vs 'bias [3]'; rank 2 differs from rank 0 at "
                                     "entry 2: 'scale []' vs nothing (3 entries vs 2)")));
  // Lists with the same concatenation differ.
  const auto split = run_ranks_expecting_errors(2, [](std::shared_ptr<ProcessGroup> world) {
    require_equal(*world,
                  world->rank() == 0 ? std::vector<std::string>{"ab", "c"}
                                     : std::vector<std::string>{"a", "bc"},
                  "lists");
  });
  EXPECT_THAT(split, Each(HasSubstr("at entry 0: 'a' vs 'ab'")));
}

struct Misuse {
  const char* name;
  std::function<void(ProcessGroup&)> call;
  const char* text;
};

TEST(Groups, MisuseThrowsBeforeAnythingIsSent) {
  const std::vector<Misuse> cases = {
      {"undefined", [](ProcessGroup& g) { g.all_reduce(at::Tensor(), ReduceOp::kSum); },
       "[comm] all_reduce: got an undefined tensor, expected a contiguous tensor on cpu"},
      {"dtype",
       [](ProcessGroup& g) { g.all_reduce(at::zeros({2}, at::kComplexFloat), ReduceOp::kSum); },
       "got tensor of ComplexFloat, expected float32"},
      {"strides",
       [](ProcessGroup& g) {
         g.broadcast(at::zeros({2, 3}).t(), 0);
       },
       "[comm] broadcast: got a non-contiguous tensor of sizes [3, 2] and strides [1, 3]"},
      {"negated lazily",
       [](ProcessGroup& g) {
         const at::Tensor complex = at::view_as_complex(at::ones({1, 2}));
         g.all_reduce(at::imag(complex.conj()), ReduceOp::kMax);
       },
       "got tensor that is negated, or zero, lazily, expected its values in memory; call clone()"},
      {"no memory",
       [](ProcessGroup& g) {
         g.all_gather(at::zeros({2 * g.size()}), at::_efficientzerotensor({2}));
       },
       "got input that is negated, or zero, lazily, expected its values in memory; call clone()"},
      {"freed",
       [](ProcessGroup& g) {
         const at::Tensor freed = at::zeros({6}).narrow(0, 2, 4);
         freed.storage().unsafeGetStorageImpl()->set_nbytes(0);
         g.all_reduce(freed, ReduceOp::kSum);
       },
       "got tensor of 24 bytes whose storage has 0, expected its memory"},
      {"scatter_bytes", [](ProcessGroup& g) { g.scatter_bytes({"one"}, 1); },
       "[comm] scatter_bytes: got 1 texts on the root, rank 1, expected 2, one for each rank"},
      {"meta",
       [](ProcessGroup& g) {
         g.all_reduce(at::zeros({2}, at::TensorOptions().device(at::kMeta)), ReduceOp::kSum);
       },
       "got tensor on meta, expected it on cpu, where this rank's tensors of the group lie"},
      {"average", [](ProcessGroup& g) { g.all_reduce(at::zeros({2}, at::kInt), ReduceOp::kAvg); },
       "got AVG of Int, expected a floating dtype"},
      {"root", [](ProcessGroup& g) { g.broadcast(at::zeros({2}), 2); },
       "got root 2, expected 0 to 1"},
      {"scatter size",
       [](ProcessGroup& g) { g.reduce_scatter(at::zeros({2}), at::zeros({3}), ReduceOp::kSum); },
       "got input of 3 and output of 2 elements on 2 ranks, expected input of 4"},
      {"gather size", [](ProcessGroup& g) { g.all_gather(at::zeros({3}), at::zeros({2})); },
       "got output of 3 and input of 2 elements on 2 ranks, expected output of 4"},
      {"gather dtype",
       [](ProcessGroup& g) { g.all_gather(at::zeros({4}), at::zeros({2}, at::kDouble)); },
       "got output of Float and input of Double, expected one dtype"},
      {"overlap",
       [](ProcessGroup& g) {
         at::Tensor whole = at::zeros({4});
         g.reduce_scatter(whole.narrow(0, 1, 2), whole, ReduceOp::kSum);
       },
       "got output that overlaps input at byte 4"},
      {"foreign slice",
       [](ProcessGroup& g) {
         at::Tensor whole = at::zeros({4});
         g.all_gather(whole, whole.narrow(0, 2 * (1 - g.rank()), 2));
       },
       "expected slice"},
      {"subgroup order",
       [](ProcessGroup& g) {
         g.subgroup({1, 0}, "x");
       },
       "[comm] subgroup 'x': got ranks [1, 0], expected strictly ascending ranks from 0 to 1"},
      {"subgroup range",
       [](ProcessGroup& g) {
         g.subgroup({0, 2}, "x");
       },
       "got ranks [0, 2]"},
      {"subgroup empty", [](ProcessGroup& g) { g.subgroup({}, "x"); }, "got ranks []"},
      {"subgroup unnamed", [](ProcessGroup& g) { g.subgroup({0}, ""); },
       "got the name '', expected"},
      // "world/a/b" is the name of subgroup b of a.
      {"subgroup with a path", [](ProcessGroup& g) { g.subgroup({0}, "a/b"); },
       "not empty and without '/'"},
      {"subgroup with an escape sequence", [](ProcessGroup& g) { g.subgroup({0}, "a\x1b[2J"); },
       "got the name 'a\\x1b[2J', expected"},
      {"subgroup twice",
       [](ProcessGroup& g) {
         duplicate(g, "same");
         duplicate(g, "same");
       },
       "got the name 'same', expected one that this group has not given yet"},
      {"negative size", [](ProcessGroup& g) { g.allocate(-1, at::kFloat); },
       "[comm] allocate: got -1 elements"},
  };
  for (const Misuse& misuse : cases) {
    const auto errors = run_ranks_expecting_errors(2, [&](std::shared_ptr<ProcessGroup> world) {
      std::string text;
      try {
        misuse.call(*world);
      } catch (const c10::Error& error) {
        text = error.what_without_backtrace();
      }
      EXPECT_EQ(sum_of_ranks(*world, 1), 2) << "the group is as good as before";
      throw std::runtime_error(text);
    });
    EXPECT_THAT(errors, Each(HasSubstr(misuse.text))) << misuse.name;
  }
}

TEST(Groups, OptionsAreChecked) {
  const auto refused = [](ProcessGroupOptions options) -> std::string {
    try {
      init_process_group(std::move(options));
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  EXPECT_THAT(refused({.rank = 0}), HasSubstr("got rank without world_size"));
  EXPECT_THAT(refused({.rank = 2, .world_size = 2}), HasSubstr("got rank 2 of world_size 2"));
  EXPECT_THAT(refused({.timeout = std::chrono::milliseconds(0)}), HasSubstr("a timeout of 0 ms"));
  EXPECT_THAT(refused({.backend = "nccl"}), HasSubstr("got backend 'nccl' with device 'cpu'"));
  for (const std::string backend : {"ucc", "gloo", "tcp"}) {
    EXPECT_THAT(refused({.backend = backend}),
                HasSubstr("got backend '" + backend +
                          "', expected 'auto', 'loopback' (one rank), 'mpi' (CPUs of any hosts, "
                          "under mpirun or srun), 'hosts' (mpi, and shared memory inside each "
                          "host), 'shm' (ranks of one host) or 'nccl' (GPUs); use "
                          "'auto'"));
  }
  EXPECT_THAT(refused({.rank = 0, .world_size = 2, .store_url = "file://x/y"}),
              HasSubstr("[rendezvous] store_url: got 'file://x/y'"));
  EXPECT_THAT(
      refused({.rank = 0, .world_size = 2, .store_url = "file:///tmp/x/y", .backend = "loopback"}),
      HasSubstr("got backend 'loopback' for 2 ranks"));
}

TEST(Groups, AWorldOfOneNeedsNothing) {
  auto world = init_process_group();
  EXPECT_EQ(world->size(), 1);
  EXPECT_EQ(world->backend(), "loopback");
  EXPECT_EQ(sum_of_ranks(*world, 7), 7);
  const at::Tensor buffer = world->allocate(100, at::kDouble);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data_ptr()) % 4096, 0u);
  EXPECT_EQ(world->subgroup({0}, "self")->name(), "world/self");
  world->abort("enough");
  EXPECT_THROW(world->barrier("after"), std::runtime_error);
}

}  // namespace
}  // namespace tessera::internal

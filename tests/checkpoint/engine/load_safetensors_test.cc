#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/safetensors.h"
#include "tessera/tests/checkpoint/tensor_files.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/zero/state/saved_rank.h"

// load_safetensors(): weights from other programs.
namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

struct SmallNet : torch::nn::Module {
  SmallNet() {
    first = register_module("first", torch::nn::Linear(3, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    tied = register_parameter("tied", first->weight);
  }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor tied;
};

/// Values for all of SmallNet, the tied parameter under its first name.
Tensors small_values() {
  return {{"first.weight", torch::arange(12, torch::kDouble).view({4, 3})},
          {"first.bias", torch::full({4}, 0.5, torch::kBFloat16)},
          {"norm.weight", torch::full({4}, 2.0)},
          {"norm.bias", torch::full({4}, 3.0)},
          {"norm.running_mean", torch::full({4}, 4.0)},
          {"norm.running_var", torch::full({4}, 5.0)},
          {"norm.num_batches_tracked", torch::full({}, 6, torch::kLong)}};
}

void expect_small_values(const SmallNet& net) {
  EXPECT_TRUE(net.first->weight.equal(torch::arange(12, torch::kFloat).view({4, 3})));
  EXPECT_TRUE(net.first->bias.equal(torch::full({4}, 0.5)));
  EXPECT_TRUE(net.norm->running_var.equal(torch::full({4}, 5.0)));
  EXPECT_EQ(net.norm->num_batches_tracked.item<int64_t>(), 6);
}

class LoadSafetensors : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
  const TemporaryDirectory directory_;
};

TEST_F(LoadSafetensors, ReadsOneFileSeveralOrAnIndexOfThem) {
  const Tensors all = small_values();
  write_file(path("all"), all);
  write_file(path("a.safetensors"), {all.begin(), all.begin() + 3});
  write_file(path("b.safetensors"), {all.begin() + 3, all.end()});
  std::ofstream(path("model.safetensors.index.json"))
      << R"({"metadata": {}, "weight_map": {"first.weight": "a.safetensors",)"
      << R"( "norm.bias": "b.safetensors", "first.bias": "a.safetensors"}})";
  for (const std::vector<std::string>& paths : {std::vector{path("all")},
                                                {path("a.safetensors"), path("b.safetensors")},
                                                {path("model.safetensors.index.json")}}) {
    SmallNet net;
    const LoadedSafetensors loaded = load_safetensors(net, paths);
    EXPECT_THAT(loaded.missing, IsEmpty());
    EXPECT_THAT(loaded.unknown, IsEmpty());
    expect_small_values(net);
  }
}

TEST_F(LoadSafetensors, RenamesAndLeavesOut) {
  Tensors theirs = small_values();
  for (auto& [name, tensor] : theirs) name.insert(0, "net.");
  theirs.pop_back();
  theirs.emplace_back("head.weight", torch::zeros({2}));
  theirs.emplace_back("net.more", torch::zeros({2}));
  write_file(path("theirs"), theirs);
  SmallNet net;
  SafetensorsOptions options;
  options.rename = [](const std::string& name) {
    return name.rfind("net.", 0) == 0 ? name.substr(4) : "";
  };
  const auto load = [&] { return load_safetensors(net, {path("theirs")}, options); };
  EXPECT_THAT(load,
              ThrowsMessage<c10::Error>(AllOf(HasSubstr("'norm.num_batches_tracked': missing"),
                                              HasSubstr("'net.more' in " + path("theirs")))));
  EXPECT_FALSE(net.norm->running_var.equal(torch::full({4}, 5.0))) << "nothing was changed";
  options.allow_missing = options.allow_unknown = true;
  const LoadedSafetensors loaded = load();
  EXPECT_THAT(loaded.missing, ElementsAre("norm.num_batches_tracked"));
  EXPECT_THAT(loaded.unknown, ElementsAre("net.more"));
  EXPECT_TRUE(net.norm->running_var.equal(torch::full({4}, 5.0)));
}

TEST_F(LoadSafetensors, ListsAllThatDoesNotFitAndChangesNothing) {
  Tensors theirs = small_values();
  theirs[0].second = torch::zeros({3, 4});
  theirs[2].second = torch::zeros({});
  write_file(path("shapes"), theirs);
  SmallNet net;
  const at::Tensor before = net.first->bias.clone();
  EXPECT_THAT(
      [&] { load_safetensors(net, {path("shapes")}); },
      ThrowsMessage<c10::Error>(AllOf(HasSubstr("'first.weight': got [3, 4], expected [4, 3]"),
                                      HasSubstr("'norm.weight': got [], expected [4]"))));
  write_file(path("all"), small_values());
  EXPECT_THAT(
      [&] {
        load_safetensors(net, {path("all"), path("all")});
      },
      ThrowsMessage<c10::Error>(HasSubstr("'first.bias': got two tensors for it")));
  std::ofstream(path("broken")) << "no safetensors file";
  std::ofstream(path("broken.json")) << R"({"weight_map": {"a": "../b"}})";
  for (const char* name : {"broken", "broken.json", "none"}) {
    EXPECT_THAT([&] { load_safetensors(net, {path(name)}); },
                ThrowsMessage<c10::Error>(HasSubstr(path(name))));
  }
  EXPECT_THAT([&] { load_safetensors(net, {}); }, ThrowsMessage<c10::Error>(HasSubstr("no file")));
  EXPECT_TRUE(net.first->bias.equal(before));
}

TEST_F(LoadSafetensors, GivesEveryRankOfAnEngineItsPart) {
  for (const int world : {1, 3}) {
    for (const Configuration& configuration : configurations_at(world)) {
      const auto model = [](uint64_t seed) {
        return prepare(subject("BatchNorm").make(), at::kFloat, seed);
      };
      Tensors values;
      for (const auto& parameter : model(5)->named_parameters()) {
        values.emplace_back(parameter.key(), parameter.value());
      }
      for (const auto& buffer : model(5)->named_buffers()) {
        values.emplace_back(buffer.key(), buffer.value());
      }
      write_file(path("weights"), values);
      run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
        const bool is_last = group->rank() == group->size() - 1;
        const SavedRank run(std::move(group), "BatchNorm", configuration, 77);
        run.train(0, 1);
        EXPECT_THAT(([&] {
                      load_safetensors(*run.net, *run.engine, {path(is_last ? "none" : "weights")});
                    }),
                    ThrowsMessage<c10::Error>(HasSubstr(path("none"))));
        load_safetensors(*run.net, *run.engine, {path("weights")});
        EXPECT_EQ(run.engine->steps(), 1);
        {
          const auto whole = run.engine->full_parameters();
          for (const auto& [name, expected] : values) {
            const at::Tensor* got = run.net->named_parameters().find(name);
            if (got == nullptr) continue;
            EXPECT_TRUE(got->equal(expected)) << name;
          }
        }
        run.train(1, 2);
      });
    }
  }
}

TEST_F(LoadSafetensors, FollowsLinksAsModelHubsMakeThem) {
  std::filesystem::create_directory(path("blobs"));
  write_file(path("blobs/5f3a"), small_values());
  std::filesystem::create_symlink("blobs/5f3a", path("model.safetensors"));
  std::ofstream(path("blobs/77")) << R"({"weight_map": {"first.weight": "model.safetensors"}})";
  std::filesystem::create_symlink("blobs/77", path("model.safetensors.index.json"));
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    SmallNet net;
    load_safetensors(net, {path(name)});
    expect_small_values(net);
  }
}

TEST_F(LoadSafetensors, BelievesNoIndexThatItsFilesContradict) {
  const Tensors all = small_values();
  write_file(path("a"), {all.begin(), all.begin() + 3});
  write_file(path("b"), {all.begin() + 2, all.end()});
  SmallNet net;
  const auto load = [&] { load_safetensors(net, {path("i.json")}); };
  std::ofstream(path("i.json")) << R"({"weight_map": {"first.weight": "b"}})";
  EXPECT_THAT(load, ThrowsMessage<c10::Error>(
                        AllOf(HasSubstr("i.json"), HasSubstr("'b'"), HasSubstr("'first.weight'"))));
  std::ofstream(path("i.json")) << R"({"weight_map": {"first.weight": "a", "norm.bias": "b"}})";
  EXPECT_THAT(load, ThrowsMessage<c10::Error>(AllOf(HasSubstr("'norm.weight' in '" + path("a")),
                                                    HasSubstr("and in '" + path("b")))));
  std::ofstream(path("i.json")) << R"({"weight_map": {"first.weight": "a\u0000b"}})";
  EXPECT_THAT(load, ThrowsMessage<c10::Error>(HasSubstr("expected the name of a file beside it")));
}

TEST_F(LoadSafetensors, TakesTheFirstNameOfATiedTensorAndNoComplexNumbers) {
  Tensors theirs = small_values();
  theirs.insert(theirs.begin(), {"tied", torch::full({4, 3}, -1.0)});
  write_file(path("tied"), theirs);
  theirs.emplace_back("tied", torch::full({4, 3}, -1.0));
  theirs.erase(theirs.begin());
  write_file(path("tied last"), theirs);
  for (const char* name : {"tied", "tied last"}) {
    SmallNet net;
    load_safetensors(net, {path(name)});
    EXPECT_TRUE(net.tied.equal(torch::full({4, 3}, -1.0)) ||
                net.first->weight.equal(torch::arange(12, torch::kFloat).view({4, 3})));
    EXPECT_TRUE(net.tied.equal(net.named_parameters()["tied"]));
    const std::string first = net.named_parameters().keys().front();
    EXPECT_EQ(net.tied.max().item<float>(), first == "tied" ? -1.0F : 11.0F) << first;
  }
  theirs = small_values();
  theirs[1].second = torch::zeros({4}, torch::kComplexFloat);
  write_file(path("complex"), theirs);
  SmallNet net;
  EXPECT_THAT([&] { load_safetensors(net, {path("complex")}); },
              ThrowsMessage<c10::Error>(HasSubstr("'first.bias': got complex numbers")));
}

TEST_F(LoadSafetensors, IsRefusedByAllRanksOrNone) {
  Tensors values;
  for (const auto& parameter :
       prepare(subject("OddMlp").make(), at::kFloat, 5)->named_parameters()) {
    values.emplace_back(parameter.key(), parameter.value().detach().clone());
  }
  write_file(path("0"), values);
  values.back().second.add_(1);
  write_file(path("1"), values);
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
    run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
      const int rank = group->rank();
      const SavedRank run(std::move(group), "OddMlp", configuration_of(strategy), 77);
      const StateDict before = run.engine->state_dict(StateScope::kEveryRank);
      EXPECT_THAT(([&] { load_safetensors(*run.net, *run.engine, {path(std::to_string(rank))}); }),
                  ThrowsMessage<c10::Error>(HasSubstr("rank 1 differs from rank 0")));
      SafetensorsOptions options;
      options.rename = [&](const std::string& name) -> std::string {
        if (rank == 1) throw std::runtime_error("boom");
        return name;
      };
      EXPECT_THAT(([&] { load_safetensors(*run.net, *run.engine, {path("0")}, options); }),
                  ThrowsMessage<c10::Error>(AllOf(HasSubstr("rank 1"), HasSubstr("boom"))));
      const auto other = prepare(subject("OddMlp").make(), at::kFloat, 5);
      EXPECT_THAT(([&] { load_safetensors(*other, *run.engine, {path("0")}); }),
                  ThrowsMessage<c10::Error>(HasSubstr("expected the engine's model")));
      EXPECT_EQ(bit_differences(run.engine->state_dict(StateScope::kEveryRank), before), "");
      load_safetensors(*run.net, *run.engine, {path("0")});
      EXPECT_NE(bit_differences(run.engine->state_dict(StateScope::kEveryRank), before), "");
      run.train(0, 1);
    });
  }
}

TEST_F(LoadSafetensors, RoundsParametersAndNotTheirMasters) {
  Tensors values;
  for (const auto& parameter :
       prepare(subject("OddMlp").make(), at::kFloat, 5)->named_parameters()) {
    values.emplace_back(parameter.key(), parameter.value());
  }
  write_file(path("weights"), values);
  for (const Configuration& configuration : configurations_at(3)) {
    run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
      const SavedRank run(std::move(group), "OddMlp", in_bfloat16(configuration), 77);
      load_safetensors(*run.net, *run.engine, {path("weights")});
      const StateDict state = run.engine->state_dict(StateScope::kEveryRank);
      for (const auto& [name, expected] : values) {
        EXPECT_TRUE(
            state.entries.at("optimizer." + name + ".master").tensor().equal(expected.detach()));
        EXPECT_TRUE(state.entries.at("model." + name).tensor().equal(expected.to(at::kBFloat16)));
      }
    });
  }
}

}  // namespace
}  // namespace tessera::internal::testing

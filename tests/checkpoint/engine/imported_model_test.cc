// A model without optimizer state: exported from a run by the tool, imported as step 0 of another,
// and loaded there.
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoint.h"
#include "tessera/checkpoints.h"
#include "tessera/tests/checkpoint/tensor_files.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/zero/state/saved_rank.h"

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

/// The tensors of the model's entries in a state, or of its other entries.
std::map<std::string, at::Tensor> entries_of(const StateDict& state, bool of_model) {
  std::map<std::string, at::Tensor> entries;
  for (const auto& [name, entry] : state.entries) {
    if (name.starts_with("model.") == of_model && !name.ends_with(".master")) {
      entries[name] = entry.tensor().clone();
    }
  }
  return entries;
}

class ImportedModel : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }

  int tool(const std::string& arguments) const {
    return std::system(
        absl::StrCat(TESSERA_CHECKPOINT_PATH, " ", arguments, " >", path("log"), " 2>&1").c_str());
  }
  /// Trains `model` in fp32 on two ranks, and imports its model as step 0 of the run "imported".
  StateDict import_from(const std::string& model) const {
    const Configuration from = configuration_of(Strategy::kZero3);
    const States saved = on_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
      const SavedRank run(std::move(group), model, from, 3);
      run.train(0, 2);
      save_checkpoint(*run.engine, path("theirs"));
      return run.engine->state_dict(StateScope::kEveryRank);
    });
    EXPECT_EQ(tool("export " + path("theirs") + " " + path("model.safetensors")), 0);
    EXPECT_EQ(tool("import " + path("model.safetensors") + " " + path("imported")), 0);
    EXPECT_EQ(tool("verify " + path("imported")), 0);
    return saved.front();
  }

  const TemporaryDirectory directory_;
};
INSTANTIATE_TEST_SUITE_P(World, ImportedModel, ::testing::Values(1, 3));

TEST_P(ImportedModel, GivesAnEngineItsModelAndLeavesTheRest) {
  for (const char* model : {"BatchNorm", "ChannelsLast", "TiedMlp", "FrozenLayers"}) {
    SCOPED_TRACE(model);
    const StateDict theirs = import_from(model);
    for (const Configuration& configuration : configurations_at(world())) {
      run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
        const SavedRank run(std::move(group), model, configuration, 77);
        run.train(0, 1);
        const StateDict before = run.engine->state_dict(StateScope::kEveryRank);
        const auto loaded = load_checkpoint(*run.engine, path("imported"));
        ASSERT_TRUE(loaded.has_value());
        EXPECT_TRUE(loaded->is_model_alone);
        EXPECT_EQ(loaded->notes.count("imported"), 1U);
        const StateDict after = run.engine->state_dict(StateScope::kEveryRank);
        EXPECT_EQ(bit_differences(entries_of(after, true), entries_of(theirs, true)), "");
        EXPECT_EQ(bit_differences(entries_of(after, false), entries_of(before, false)), "");
        EXPECT_NE(bit_differences(entries_of(after, true), entries_of(before, true)), "");
        EXPECT_EQ(run.engine->steps(), 1);
        run.train(1, 2);
      });
    }
    ASSERT_EQ(std::system(absl::StrCat("rm -r ", directory_.path(), "/*").c_str()), 0);
  }
}

TEST_P(ImportedModel, GivesMastersTheValuesThatParametersRound) {
  const StateDict theirs = import_from("OddMlp");
  for (const Configuration& configuration : configurations_at(world())) {
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const SavedRank run(std::move(group), "OddMlp", in_bfloat16(configuration), 77);
      load_checkpoint(*run.engine, path("imported"));
      int64_t masters = 0;
      for (const auto& [name, entry] : run.engine->state_dict(StateScope::kEveryRank).entries) {
        const std::string parameter = name.substr(name.find('.') + 1);
        if (name.ends_with(".master")) {
          const std::string of = parameter.substr(0, parameter.rfind('.'));
          EXPECT_TRUE(entry.tensor().equal(theirs.entries.at("model." + of).tensor())) << name;
          ++masters;
        } else if (name.starts_with("model.")) {
          EXPECT_EQ(entry.dtype, at::kBFloat16);
          EXPECT_TRUE(entry.tensor().equal(theirs.entries.at(name).tensor().to(at::kBFloat16)));
        }
      }
      EXPECT_GT(masters, 0);
    });
  }
}

TEST_P(ImportedModel, MayHaveBuffersOfAnotherDtype) {
  Tensors values;
  const auto theirs = prepare(subject("BatchNorm").make(), at::kFloat, 5);
  for (const auto& parameter : theirs->named_parameters()) {
    values.emplace_back(parameter.key(), parameter.value().to(at::kDouble));
  }
  for (const auto& buffer : theirs->named_buffers()) {
    const bool is_count = buffer.value().scalar_type() == at::kLong;
    values.emplace_back(buffer.key(), buffer.value().to(is_count ? at::kInt : at::kDouble));
  }
  write_file(path("other.safetensors"), values);
  EXPECT_EQ(tool("import " + path("other.safetensors") + " " + path("imported")), 0);
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "BatchNorm", configuration_of(Strategy::kZero2), 77);
    load_checkpoint(*run.engine, path("imported"));
    const StateDict state = run.engine->state_dict(StateScope::kEveryRank);
    for (const auto& [name, value] : values) {
      EXPECT_TRUE(
          state.entries.at("model." + name).tensor().to(at::kDouble).equal(value.to(at::kDouble)))
          << name;
    }
  });
}

TEST_P(ImportedModel, OfAnotherModelIsRefused) {
  import_from("OddMlp");
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "BatchNorm", configuration_of(Strategy::kZero2), 3);
    const StateDict before = run.engine->state_dict(StateScope::kEveryRank);
    EXPECT_THAT([&] { load_checkpoint(*run.engine, path("imported")); },
                ThrowsMessage<c10::Error>(AllOf(HasSubstr("missing"), HasSubstr("running_mean"),
                                                HasSubstr("nothing was changed"))));
    const StateDict after = run.engine->state_dict(StateScope::kEveryRank);
    EXPECT_EQ(bit_differences(after, before), "");
    run.train(0, 1);
  });
}

TEST_P(ImportedModel, IsWhereARunBegins) {
  import_from("OddMlp");
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero3), 77);
    int64_t samples = 5;
    Checkpoints checkpoints(*run.engine, path("imported"), {.every = 1});
    checkpoints.track("samples", samples);
    const auto loaded = checkpoints.load();
    EXPECT_TRUE(loaded.has_value() && loaded->is_model_alone && loaded->step == 0);
    EXPECT_EQ(samples, 5);
    run.train(0, 1);
    checkpoints.after_step();
    checkpoints.finish();
    EXPECT_EQ(checkpoints.durable_step(), 1);
    samples = 6;
    const auto again = checkpoints.load();
    EXPECT_TRUE(again.has_value() && !again->is_model_alone && again->step == 1);
    EXPECT_EQ(samples, 5);
  });
}

}  // namespace
}  // namespace tessera::internal::testing

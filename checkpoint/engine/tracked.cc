#include "tessera/checkpoint/engine/tracked.h"

#include <cstdio>
#include <mutex>
#include <sstream>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/checkpoint/engine/checkpoint_names.h"
#include "tessera/checkpoint/engine/tensor_problem.h"
#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/format/entry_form.h"
#include "tessera/checkpoint/format/utf8.h"
#include "tessera/checkpoints.h"
#include "tessera/core/layout/read_only_memory.h"
#include "tessera/core/process/error_text.h"
#include "tessera/data/shuffle.h"
#include "tessera/sampler_state.h"

namespace tessera::internal {

namespace {

constexpr const char* kMissing = "got none in the checkpoint";

/// Returns a copy of `tensor` in the host's memory.
at::Tensor copied(const at::Tensor& tensor) {
  const std::string problem = tensor_problem(tensor);
  TORCH_CHECK(problem.empty(), problem);
  return tensor.detach().cpu().clone();
}

class TrackedSampler final : public Tracked {
 public:
  explicit TrackedSampler(const data::DistributedSampler& sampler) : sampler_(sampler) {}

  void check_ranks(ProcessGroup& group) const override { sampler_.check_ranks(group); }
  CheckpointExtras save() const override {
    CheckpointExtras extras;
    for (const auto& [key, number] : sampler_.state().numbers()) extras.values[key] = number;
    return extras;
  }
  std::string doubt() const override {
    return sampler_.is_never_advanced()
               ? "got a sampler whose batches were used and none advanced over, so that a resumed "
                 "run would begin its epoch again; call advance() after each step with the number "
                 "of "
                 "its batches"
               : "";
  }
  std::string problem_of(const CheckpointExtras& saved) const override {
    return thrown_by([&] {
      data::DistributedSampler(sampler_.size(), /*world=*/1, /*rank=*/0, options_of(sampler_))
          .load_state(state_of(saved));
    });
  }
  std::string load(const CheckpointExtras& saved, const Origin& /*origin*/) override {
    sampler_.load_state(state_of(saved));
    return "";
  }

 private:
  static data::SamplerOptions options_of(const data::DistributedSampler& sampler) {
    const data::SamplerState state = sampler.state();
    return {.shuffle = state.shuffle, .seed = state.seed};
  }
  static data::SamplerState state_of(const CheckpointExtras& saved) {
    std::map<std::string, int64_t> numbers;
    for (const auto& [key, value] : saved.values) {
      const int64_t* const number = std::get_if<int64_t>(&value);
      TORCH_CHECK(number != nullptr, "got no whole number '", key, "', expected one");
      numbers[key] = *number;
    }
    return data::SamplerState::from_numbers(numbers);
  }

  data::DistributedSampler sampler_;  // shares its state with the program's sampler
};

/// A random number generator. Every rank saves and loads the state of its own generator.
class TrackedGenerator final : public Tracked {
 public:
  explicit TrackedGenerator(at::Generator generator) : generator_(std::move(generator)) {}

  std::string problem() const override {
    return generator_.defined() ? "" : "got no generator, expected one";
  }
  CheckpointExtras save() const override {
    const std::scoped_lock lock(generator_.mutex());
    CheckpointExtras extras;
    extras.values[kSeed] = static_cast<int64_t>(generator_.current_seed());
    extras.rank_tensors[""] = generator_.get_state().clone();
    return extras;
  }
  std::string problem_of(const CheckpointExtras& saved) const override {
    const auto seed = saved.values.find(kSeed);
    if (seed == saved.values.end() || !std::holds_alternative<int64_t>(seed->second)) {
      return absl::StrCat(kMissing, ", expected a generator's seed");
    }
    const auto state = saved.rank_tensors.find("");
    if (state == saved.rank_tensors.end()) return "";
    // set_state() throws if the state comes from another kind of generator, because its size
    // differs.
    return thrown_by([&] { generator_.clone().set_state(state->second); });
  }
  std::string load(const CheckpointExtras& saved, const Origin& origin) override {
    const std::scoped_lock lock(generator_.mutex());
    const auto state = saved.rank_tensors.find("");
    if (state != saved.rank_tensors.end()) {
      generator_.set_state(state->second);
      return "";
    }
    const auto seed = static_cast<uint64_t>(std::get<int64_t>(saved.values.at(kSeed)));
    generator_.set_current_seed(
        split_mix(split_mix(split_mix(seed) + static_cast<uint64_t>(origin.rank)) +
                  static_cast<uint64_t>(origin.step)));
    return absl::StrCat("saved at a world of ", origin.saved_world, " and loaded at one of ",
                        origin.world, ": seeded anew, from seed, rank and step");
  }

 private:
  static constexpr const char* kSeed = "seed";

  mutable at::Generator generator_;  // shares its state with the program's generator
};

class TrackedTensor final : public Tracked {
 public:
  explicit TrackedTensor(at::Tensor& tensor) : tensor_(tensor) {}

  std::string problem() const override {
    const std::string unsavable = tensor_problem(tensor_);
    return unsavable.empty() ? unwritable() : unsavable;
  }
  CheckpointExtras save() const override {
    CheckpointExtras extras;
    extras.tensors[""] = copied(tensor_);
    return extras;
  }
  std::string problem_of(const CheckpointExtras& saved) const override {
    const auto found = saved.tensors.find("");
    if (found == saved.tensors.end()) return absl::StrCat(kMissing, ", expected a tensor");
    const at::Tensor& theirs = found->second;
    if (const std::string problem = this->problem(); !problem.empty()) return problem;
    if (theirs.sizes() == tensor_.sizes() && theirs.scalar_type() == tensor_.scalar_type()) {
      return "";
    }
    std::ostringstream text;
    text << "got " << theirs.scalar_type() << theirs.sizes() << ", expected "
         << tensor_.scalar_type() << tensor_.sizes();
    return text.str();
  }
  std::string load(const CheckpointExtras& saved, const Origin& /*origin*/) override {
    const at::NoGradGuard no_grad;
    tensor_.copy_(saved.tensors.at(""));
    return "";
  }

 private:
  /// Returns why load() cannot copy to tensor_, which is a dense tensor; "" if it can.
  std::string unwritable() const {
    if (at::has_internal_overlap(tensor_) == at::MemOverlap::Yes) {
      return "got an expanded tensor, expected one whose elements have memory of their own, for a "
             "load to copy to; clone() it first";
    }
    if (tensor_.is_inference()) {
      return "got a tensor made in InferenceMode, expected one that a load can copy to; clone() it "
             "outside of that mode first";
    }
    if (ReadOnlyMemory().holds(tensor_)) {
      return "got a tensor in memory that this process may not write, expected one that a load can "
             "copy to; clone() it first";
    }
    return "";
  }

  at::Tensor& tensor_;
};

template <typename Value>
class TrackedValue final : public Tracked {
 public:
  explicit TrackedValue(Value& value) : value_(value) {}

  std::string problem() const override {
    if constexpr (std::is_same_v<Value, std::string>) return utf8_problem(value_);
    return "";
  }
  CheckpointExtras save() const override {
    CheckpointExtras extras;
    extras.values[""] = value_;
    return extras;
  }
  std::string problem_of(const CheckpointExtras& saved) const override {
    const auto found = saved.values.find("");
    const char* const kind = std::is_same_v<Value, int64_t>  ? "a whole number"
                             : std::is_same_v<Value, double> ? "a number"
                                                             : "a text";
    if (found == saved.values.end()) return absl::StrCat(kMissing, ", expected ", kind);
    if (std::holds_alternative<Value>(found->second)) return "";
    return absl::StrCat("got another kind of value, expected ", kind);
  }
  std::string load(const CheckpointExtras& saved, const Origin& /*origin*/) override {
    value_ = std::get<Value>(saved.values.at(""));
    return "";
  }

 private:
  Value& value_;
};

class TrackedFunctions final : public Tracked {
 public:
  explicit TrackedFunctions(Checkpoints::Functions functions) : functions_(std::move(functions)) {}

  std::string problem() const override {
    return functions_.save && functions_.load ? ""
                                              : "got an empty function, expected save and load";
  }
  CheckpointExtras save() const override {
    CheckpointExtras extras = functions_.save();
    for (auto* const tensors : {&extras.tensors, &extras.rank_tensors}) {
      for (auto& [key, tensor] : *tensors) tensor = copied(tensor);
    }
    return extras;
  }
  std::string problem_of(const CheckpointExtras& /*saved*/) const override { return ""; }
  std::string load(const CheckpointExtras& saved, const Origin& /*origin*/) override {
    functions_.load(saved);
    return "";
  }

 private:
  const Checkpoints::Functions functions_;
};

std::string joined(const std::string& name, const std::string& key) {
  return key.empty() ? name : absl::StrCat(name, "/", key);
}

template <typename Values>
void add_to(Values& all, const std::string& name, Values values) {
  for (auto& [key, value] : values) all[joined(name, key)] = std::move(value);
}

std::string name_in(const std::string& key) { return key.substr(0, key.find('/')); }

/// Returns those values in `all` that belong to the tracked thing `name`, under the keys that the
/// thing itself uses.
template <typename Values>
Values part_of(const Values& all, const std::string& name) {
  Values part;
  for (const auto& [key, value] : all) {
    if (name_in(key) == name) part[key == name ? "" : key.substr(name.size() + 1)] = value;
  }
  return part;
}

CheckpointExtras part_of(const CheckpointExtras& all, const std::string& name) {
  return {.values = part_of(all.values, name),
          .tensors = part_of(all.tensors, name),
          .rank_tensors = part_of(all.rank_tensors, name)};
}

}  // namespace

void TrackedThings::add(const std::string& name, std::unique_ptr<Tracked> thing) {
  TORCH_CHECK(!name.empty(), "[checkpoint] track: got an empty name, expected one");
  TORCH_CHECK(name.find('/') == std::string::npos, "[checkpoint] track: got the name '",
              printable(name), "', expected one without '/'");
  std::string problem = name_problem(name);
  // Tensors of a single rank get a longer entry name, which must be valid, too.
  if (problem.empty()) problem = name_problem(rank_entry(0, name));
  TORCH_CHECK(problem.empty(), "[checkpoint] track: ", problem);
  const std::string of_thing = thing->problem();
  TORCH_CHECK(of_thing.empty(), "[checkpoint] track '", name, "': ", of_thing);
  TORCH_CHECK(things_.try_emplace(name, std::move(thing)).second, "[checkpoint] track: got '", name,
              "' twice, expected a name for each");
}

void TrackedThings::check_ranks(ProcessGroup& group) const {
  for (const auto& [name, thing] : things_) thing->check_ranks(group);
}

CheckpointExtras TrackedThings::save() const {
  CheckpointExtras all;
  for (const auto& [name, thing] : things_) {
    CheckpointExtras extras = thing->save();
    add_to(all.values, name, std::move(extras.values));
    add_to(all.tensors, name, std::move(extras.tensors));
    add_to(all.rank_tensors, name, std::move(extras.rank_tensors));
  }
  return all;
}

void TrackedThings::say_doubts() {
  if (has_doubted_) return;
  for (const auto& [name, thing] : things_) {
    const std::string doubt = thing->doubt();
    if (doubt.empty()) continue;
    std::fprintf(stderr, "[checkpoint] '%s': %s\n", name.c_str(), doubt.c_str());
    has_doubted_ = true;
  }
}

std::string TrackedThings::problem_of(const CheckpointExtras& saved) const {
  std::vector<std::string> problems;
  for (const auto& [name, thing] : things_) {
    const std::string problem = thing->problem_of(part_of(saved, name));
    if (!problem.empty()) problems.push_back(absl::StrCat("'", name, "': ", problem));
  }
  const auto find_unknown = [&](const auto& values) {
    for (const auto& [key, value] : values) {
      if (things_.count(name_in(key)) == 0) {
        problems.push_back(absl::StrCat("'", key, "': got it in the checkpoint, expected that ",
                                        "something of this name is tracked"));
      }
    }
  };
  find_unknown(saved.values);
  find_unknown(saved.tensors);
  find_unknown(saved.rank_tensors);
  if (problems.empty()) return "";
  problems.emplace_back(
      "nothing was changed; track what the checkpoint has, or use load_checkpoint()");
  return absl::StrJoin(problems, "\n");
}

std::string TrackedThings::load(const CheckpointExtras& saved, const Tracked::Origin& origin) {
  std::vector<std::string> remarks;
  for (const auto& [name, thing] : things_) {
    const std::string remark = thing->load(part_of(saved, name), origin);
    if (!remark.empty()) remarks.push_back(absl::StrCat("[checkpoint] '", name, "': ", remark));
  }
  return absl::StrJoin(remarks, "\n");
}

}  // namespace tessera::internal

using tessera::Checkpoints;

Checkpoints& Checkpoints::track(const std::string& name, const data::DistributedSampler& sampler) {
  return add(name, std::make_unique<internal::TrackedSampler>(sampler));
}
Checkpoints& Checkpoints::track(const std::string& name, const at::Generator& generator) {
  return add(name, std::make_unique<internal::TrackedGenerator>(generator));
}
Checkpoints& Checkpoints::track(const std::string& name, at::Tensor& tensor) {
  return add(name, std::make_unique<internal::TrackedTensor>(tensor));
}
Checkpoints& Checkpoints::track(const std::string& name, int64_t& number) {
  return add(name, std::make_unique<internal::TrackedValue<int64_t>>(number));
}
Checkpoints& Checkpoints::track(const std::string& name, double& number) {
  return add(name, std::make_unique<internal::TrackedValue<double>>(number));
}
Checkpoints& Checkpoints::track(const std::string& name, std::string& text) {
  return add(name, std::make_unique<internal::TrackedValue<std::string>>(text));
}
Checkpoints& Checkpoints::track(const std::string& name, Functions functions) {
  return add(name, std::make_unique<internal::TrackedFunctions>(std::move(functions)));
}

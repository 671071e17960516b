#pragma once

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/state_stream.h"

namespace tessera::internal::testing {

/// Copies the state that it is given, and checks that write_state() keeps StateSink's contract.
class StateCollector : public StateSink {
 public:
  void begin(const std::vector<StateOutline>& entries) override {
    EXPECT_TRUE(outlines_.empty()) << "begin() once";
    outlines_ = entries;
    for (const StateOutline& outline : entries) {
      EXPECT_TRUE(outline.form.pieces.empty());
      state_.entries[outline.name] = outline.form;
      for (const Range& range : outline.ranges) left_[outline.name][range.begin] = range.numel;
    }
  }

  void write(size_t entry, int64_t begin, const at::Tensor& values) override {
    const StateOutline& outline = outlines_.at(entry);
    EXPECT_TRUE(values.is_contiguous() && values.dim() == 1 && values.device().is_cpu());
    EXPECT_EQ(values.scalar_type(), outline.form.dtype);
    const Place place = {-static_cast<int64_t>(values.element_size()), entry, begin};
    EXPECT_LT(last_, place) << outline.name << ": out of order";
    last_ = place;
    auto& left = left_[outline.name];
    EXPECT_EQ(left.count(begin), 1u) << outline.name << ": not announced, or written twice";
    EXPECT_EQ(left[begin], values.numel()) << outline.name;
    left.erase(begin);
    state_.entries.at(outline.name).pieces.push_back({begin, values.clone()});
  }

  /// Returns what was written. Everything that begin() announced must have been written.
  StateDict take() {
    for (const auto& [name, ranges] : left_) EXPECT_TRUE(ranges.empty()) << name;
    return std::move(state_);
  }

 private:
  using Place = std::tuple<int64_t, size_t, int64_t>;  // -width, entry, begin
  Place last_ = {-1000, 0, 0};
  std::vector<StateOutline> outlines_;
  std::map<std::string, std::map<int64_t, int64_t>> left_;
  StateDict state_;
};

/// Reads from a state whose entries are whole. A read that was not announced is a failure.
class StateReader : public StateSource {
 public:
  explicit StateReader(const StateDict& whole) : whole_(whole) {
    for (const auto& [name, entry] : whole.entries) {
      forms_[name] = entry;
      forms_[name].pieces.clear();
    }
  }

  const std::map<std::string, StateEntry>& entries() const override { return forms_; }

  std::string problem_of(const std::vector<StateOutline>& needed) override {
    for (const StateOutline& outline : needed) {
      for (const Range& range : outline.ranges) needed_[outline.name][range.begin] = range.numel;
    }
    if (throws_a_number) throw 42;
    return problem;
  }

  void read(const std::string& name, int64_t begin, const at::Tensor& to) override {
    EXPECT_TRUE(to.is_contiguous() && to.dim() == 1 && to.device().is_cpu());
    const auto found = needed_[name].find(begin);
    EXPECT_TRUE(found != needed_[name].end() && found->second == to.numel()) << name;
    elements += to.numel();
    TORCH_CHECK(elements <= fails_after, "the disk is gone");
    to.copy_(whole_.entries.at(name).pieces.at(0).values.narrow(0, begin, to.numel()));
  }

  std::string problem;              ///< result of problem_of()
  bool throws_a_number = false;     ///< problem_of() throws a type not derived from std::exception
  int64_t fails_after = 1LL << 40;  ///< elements
  int64_t elements = 0;             ///< read so far

 private:
  const StateDict& whole_;
  std::map<std::string, StateEntry> forms_;
  std::map<std::string, std::map<int64_t, int64_t>> needed_;
};

/// Makes whole entries of the pieces that several ranks wrote. Each element must be there once.
inline StateDict joined(std::vector<StateDict> shares) {
  StateDict all;
  for (StateDict& share : shares) all.merge(std::move(share));
  for (auto& [name, entry] : all.entries) {
    std::map<int64_t, at::Tensor> by_begin;
    for (const StatePiece& piece : entry.pieces) by_begin[piece.begin] = piece.values;
    std::vector<at::Tensor> values = {at::empty({0}, entry.dtype).view(at::kByte)};
    int64_t next = 0;
    for (const auto& [begin, piece] : by_begin) {
      EXPECT_EQ(begin, next) << name << ": a gap, or an element twice";
      next = begin + piece.numel();
      values.push_back(piece.view(at::kByte));
    }
    EXPECT_EQ(next, entry.numel()) << name;
    entry.pieces = {{0, at::cat(values).view(entry.dtype)}};
  }
  return all;
}

}  // namespace tessera::internal::testing

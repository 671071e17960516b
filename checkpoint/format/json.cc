#include "tessera/checkpoint/format/json.h"

#include <set>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/files/file_operations.h"

namespace tessera::internal {
namespace {

// Upper estimates, in bytes, of the memory that one value of each kind takes in nlohmann's tree,
// including its place in a container and the allocator's overhead. The length of a text or of a
// member's name is added to its estimate.
constexpr int64_t kValueBytes = 16;
constexpr int64_t kTextBytes = 80;
constexpr int64_t kContainerBytes = 80;
constexpr int64_t kMemberBytes = 128;

/// Checks JSON against JsonBounds, without building values.
class BoundsCheck : public nlohmann::json_sax<Json> {
 public:
  explicit BoundsCheck(const JsonBounds& bounds) : bounds_(bounds) {}

  const std::string& problem() const { return problem_; }

  bool null() override { return take(kValueBytes); }
  bool boolean(bool) override { return take(kValueBytes); }
  bool number_integer(number_integer_t) override { return take(kValueBytes); }
  bool number_unsigned(number_unsigned_t) override { return take(kValueBytes); }
  bool number_float(number_float_t, const string_t&) override { return take(kValueBytes); }
  bool string(string_t& text) override { return take(kTextBytes + length_of(text)); }
  bool binary(binary_t&) override { return refuse("got binary data, expected JSON"); }
  bool start_object(std::size_t) override {
    names_.emplace_back();
    return enter();
  }
  bool end_object() override {
    names_.pop_back();
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (!names_.back().insert(name).second) {
      return refuse(absl::StrCat("got the name '", printable(name), "' twice, expected it once"));
    }
    return take(kMemberBytes + length_of(name));
  }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::detail::exception&) override {
    return refuse(absl::StrCat("got '", printable(token), "' at byte ", position,
                               ", expected well-formed JSON"));
  }

 private:
  static int64_t length_of(const std::string& text) { return static_cast<int64_t>(text.size()); }

  bool enter() {
    if (++depth_ > bounds_.depth) {
      return refuse(absl::StrCat("got values nested deeper than ", bounds_.depth,
                                 ", expected JSON as this format has it"));
    }
    return take(kContainerBytes);
  }
  bool take(int64_t bytes) {
    memory_bytes_ += bytes;
    if (memory_bytes_ <= bounds_.memory_bytes) return true;
    return refuse(absl::StrCat("got values that take more than ", bounds_.memory_bytes,
                               " bytes of memory, expected less"));
  }
  bool refuse(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  const JsonBounds bounds_;
  int depth_ = 0;
  int64_t memory_bytes_ = 0;
  std::vector<std::set<std::string>> names_;
  std::string problem_;
};

const Json& nothing() {
  static const Json empty;
  return empty;
}

}  // namespace

absl::StatusOr<Json> parse_json(std::string_view text, const JsonBounds& bounds) {
  BoundsCheck check(bounds);
  if (!Json::sax_parse(text, &check)) return absl::InvalidArgumentError(check.problem());
  return Json::parse(text);
}

absl::StatusOr<std::string> json_text(const Json& value) {
  try {
    return value.dump();
  } catch (const Json::type_error&) {
    return absl::InvalidArgumentError("got a text that is no UTF-8, expected UTF-8");
  }
}

JsonFields::JsonFields(const Json& object, std::string where, std::string& problem)
    : object_(object.is_object() ? object : nothing()),
      where_(std::move(where)),
      problem_(problem) {
  if (!object.is_object() && problem_.empty()) {
    problem_ = absl::StrCat(where_, ": got ", describe(object), ", expected an object");
  }
}

/// Returns the field `name`. If it is missing or of another kind, sets the problem. Returns JSON
/// null if there is a problem.
const Json& JsonFields::field(const char* name, const char* kind,
                              bool (Json::*is_kind)() const noexcept) {
  if (!problem_.empty()) return nothing();
  const auto found = object_.find(name);
  if (found == object_.end()) {
    problem_ = absl::StrCat(where_, ": got no field '", name, "', expected ", kind);
    return nothing();
  }
  ++asked_for_;
  if (((*found).*is_kind)()) return *found;
  problem_ =
      absl::StrCat(where_, ": field '", name, "': got ", describe(*found), ", expected ", kind);
  return nothing();
}

int64_t JsonFields::integer(const char* name, int64_t least, int64_t greatest) {
  const Json& value = field(name, "an integer", &Json::is_number_integer);
  if (value.is_null()) return least;
  if (is_integer_within(value, least, greatest)) return value.get<int64_t>();
  problem_ = absl::StrCat(where_, ": field '", name, "': got ", describe(value), ", expected ",
                          least, " to ", greatest);
  return least;
}

std::string JsonFields::text(const char* name) {
  const Json& value = field(name, "a text", &Json::is_string);
  return value.is_null() ? "" : value.get<std::string>();
}

std::vector<int64_t> JsonFields::integers(const char* name, int64_t least, int64_t greatest) {
  std::vector<int64_t> numbers;
  for (const Json& number : array(name)) {
    if (!is_integer_within(number, least, greatest)) {
      problem_ = absl::StrCat(where_, ": field '", name, "': got ", describe(number),
                              ", expected integers from ", least, " to ", greatest);
      return {};
    }
    numbers.push_back(number.get<int64_t>());
  }
  return numbers;
}

const Json& JsonFields::array(const char* name) { return field(name, "an array", &Json::is_array); }

const Json& JsonFields::object(const char* name) {
  return field(name, "an object", &Json::is_object);
}

void JsonFields::expect_no_others() {
  if (problem_.empty() && object_.size() != asked_for_) {
    problem_ = absl::StrCat(where_, ": got ", object_.size(), " fields, expected ", asked_for_);
  }
}

bool is_integer_within(const Json& value, int64_t least, int64_t greatest) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return false;
  }
  const auto number = value.get<int64_t>();
  return least <= number && number <= greatest;
}

std::string describe(const Json& value) {
  if (value.is_string()) {
    return absl::StrCat("the text '", printable(value.get_ref<const std::string&>()), "'");
  }
  if (value.is_number()) return absl::StrCat("the number ", value.dump());
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  return value.is_null() ? "null" : "true or false";
}

}  // namespace tessera::internal

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>
#include <nlohmann/json.hpp>

namespace tessera::internal {

using Json = nlohmann::json;

/// Limits on JSON from an untrusted file.
struct JsonBounds {
  int depth = 4;  ///< the deepest nesting of arrays and objects
  /// The most memory for the parsed values, by an upper estimate.
  int64_t memory_bytes = 256LL << 20;
};

/// Parses `text`. Reads it twice, and builds values only after checking that all of it is JSON,
/// that it is within `bounds` and that no object has a name twice. InvalidArgument says what is
/// wrong and where.
absl::StatusOr<Json> parse_json(std::string_view text, const JsonBounds& bounds = {});

/// Returns one line of JSON. InvalidArgument if a text in it is not UTF-8.
absl::StatusOr<std::string> json_text(const Json& value);

/// Reads the fields of a JSON object and remembers the first problem. After a problem, integer()
/// returns `least`, and the other functions return empty values.
class JsonFields {
 public:
  /// `where` names the object in messages; `problem` and `object` must outlive this.
  JsonFields(const Json& object, std::string where, std::string& problem);

  int64_t integer(const char* name, int64_t least, int64_t greatest);
  std::string text(const char* name);
  std::vector<int64_t> integers(const char* name, int64_t least, int64_t greatest);
  const Json& array(const char* name);
  const Json& object(const char* name);
  /// Must be called last. Sets the problem if the object has fields that were not read.
  void expect_no_others();

 private:
  const Json& field(const char* name, const char* kind, bool (Json::*is_kind)() const noexcept);

  const Json& object_;
  const std::string where_;
  std::string& problem_;
  size_t asked_for_ = 0;
};

/// Returns true if `value` is an integer within [least, greatest].
bool is_integer_within(const Json& value, int64_t least, int64_t greatest);

/// Describes a value for messages: "an array", "the number 3", "the text 'a'".
std::string describe(const Json& value);

}  // namespace tessera::internal

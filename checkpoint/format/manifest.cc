#include "tessera/checkpoint/format/manifest.h"

#include <algorithm>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/format/block_checksums.h"
#include "tessera/checkpoint/format/manifest_json.h"

namespace tessera::internal {
namespace {

constexpr std::string_view kMagic = R"({"format":"tessera-checkpoint","version":)";
constexpr JsonBounds kBounds{.depth = 5, .memory_bytes = 256LL << 20};

/// Checks that `text` begins with kMagic and then the version that this code reads. Does not look
/// at the rest of the text, which may differ in another version.
absl::Status check_version(std::string_view text) {
  if (!text.starts_with(kMagic)) {
    return absl::InvalidArgumentError(
        absl::StrCat("got a file that begins with '", printable(text.substr(0, 48)),
                     "', expected the manifest of a checkpoint: '", std::string(kMagic), "'"));
  }
  text.remove_prefix(kMagic.size());
  const std::string digits(text.substr(0, text.find(',')));
  int64_t version = 0;
  if (!absl::SimpleAtoi(digits, &version) || absl::StrCat(version) != digits || version < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("got '", printable(digits), "' as the format's version, expected a number"));
  }
  if (version != Manifest::kVersion) {
    return absl::UnimplementedError(
        absl::StrCat("got version ", version, " of the format, expected ", Manifest::kVersion, "; ",
                     version > Manifest::kVersion ? "a newer" : "an older",
                     " Tessera wrote it: read it with that one"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Manifest::trailer(std::string_view text) {
  return absl::StrFormat(",\"checksum\":\"%016x\"}\n", checksum_of(text));
}

absl::StatusOr<std::string> Manifest::to_text() const {
  if (const std::string wrong = problem(); !wrong.empty()) return absl::InvalidArgumentError(wrong);
  Json json = {{"nonce", nonce},        {"step", step},       {"world", world},
               {"degrees", degrees},    {"options", options}, {"extras", Json::object()},
               {"files", Json::array()}};
  json["block_bytes"] = kBlockBytes;
  for (const auto& [name, extra] : extras) json["extras"][name] = to_json(extra);
  for (const ManifestFile& file : files) json["files"].push_back(to_json(file));
  json["entries"] = to_json(entries);
  const auto body = json_text(json);
  if (!body.ok()) return body.status();
  // Drops the braces and adds a comma: '{"nonce":...}' becomes ',"nonce":...'.
  std::string text =
      absl::StrCat(std::string(kMagic), kVersion, ",", body->substr(1, body->size() - 2));
  text += trailer(text);
  if (text.size() > static_cast<size_t>(kMaxBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("got a manifest of ", text.size(),
                                                   " bytes, expected at most ", kMaxBytes,
                                                   "; save fewer entries or from fewer ranks"));
  }
  return text;
}

absl::StatusOr<Manifest> Manifest::from_text(std::string_view text) {
  if (absl::Status status = check_version(text); !status.ok()) return status;
  const size_t trailer_bytes = trailer("").size();
  const std::string_view sealed =
      text.substr(0, text.size() - std::min(text.size(), trailer_bytes));
  if (text.substr(sealed.size()) != trailer(sealed)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "got a text that ends with '", printable(text.substr(sealed.size())), "', expected '",
        printable(trailer(sealed)), "' after what stands before it; it was damaged or truncated"));
  }
  const auto json = parse_json(text, kBounds);
  if (!json.ok()) return json.status();

  std::string problem;
  JsonFields fields(*json, "the manifest", problem);
  fields.text("format");
  fields.integer("version", kVersion, kVersion);
  fields.integer("block_bytes", kBlockBytes, kBlockBytes);
  fields.text("checksum");
  Manifest manifest;
  manifest.nonce = fields.text("nonce");
  manifest.step = fields.integer("step", 0, INT64_MAX);
  manifest.world = fields.integer("world", 1, INT64_MAX);
  const std::vector<int64_t> degrees = fields.integers("degrees", 1, INT64_MAX);
  if (problem.empty() && degrees.size() != manifest.degrees.size()) {
    problem = absl::StrCat("got ", degrees.size(), " degrees, expected 3");
  }
  const Json& options = fields.object("options");
  const Json& extras = fields.object("extras");
  const Json& files = fields.array("files");
  const Json& entries = fields.object("entries");
  fields.expect_no_others();
  if (!problem.empty()) return absl::InvalidArgumentError(problem);

  for (size_t i = 0; i < degrees.size(); ++i) manifest.degrees[i] = degrees[i];
  for (const auto& [name, value] : options.items()) {
    if (!value.is_string() && problem.empty()) {
      problem = absl::StrCat("option '", printable(name), "': got ", describe(value),
                             ", expected a text");
    }
    if (problem.empty()) manifest.options[name] = value.get<std::string>();
  }
  for (const auto& [name, value] : extras.items()) {
    manifest.extras[name] = read_extra(name, value, problem);
  }
  for (const Json& file : files) {
    if (problem.empty()) manifest.files.push_back(read_file(file, problem));
  }
  if (problem.empty()) manifest.entries = read_entries(entries, problem);
  if (problem.empty()) problem = manifest.problem();
  if (!problem.empty()) return absl::InvalidArgumentError(problem);
  return manifest;
}

}  // namespace tessera::internal

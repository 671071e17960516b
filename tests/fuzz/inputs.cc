#include "tessera/tests/fuzz/inputs.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include <absl/strings/escaping.h>

#include "tessera/checkpoint/format/manifest.h"
#include "tessera/checkpoint/format/safetensors.h"
#include "tessera/checkpoint/step/shard_layout.h"
#include "tessera/checkpoint/step/shard_writer.h"
#include "tessera/core/comm/meeting/framing.h"
#include "tessera/core/comm/meeting/hello.h"
#include "tessera/core/comm/meeting/job_table.h"
#include "tessera/core/comm/meeting/message.h"
#include "tessera/core/comm/shm/segment.h"

namespace tessera::internal::fuzz {
namespace {

enum class Parser : uint8_t {
  kMessage,
  kRequest,
  kFrames,
  kFramesWithMacs,
  kConnectionHandshake,
  kHello,
  kRange,
  kSafetensors,
  kManifest,
  kShardSummary
};
constexpr int64_t kDataOfCorpus = 32;  // data bytes of layout()

std::string input_for(Parser parser, std::string bytes) {
  return static_cast<char>(parser) + std::move(bytes);
}

void check(bool promise) {
  if (!promise) std::abort();
}

bool read_message(std::string_view bytes) {
  const auto message = Message::from_bytes(bytes);
  check(!message || message->to_bytes() == bytes);
  return message.has_value();
}

bool read_request(std::string_view bytes) {
  const auto message = Message::from_bytes(bytes);
  if (!message) return false;
  JobTable table(10000);
  const Message reply = table.reply(*message);
  check(reply.kind <= static_cast<uint8_t>(ReplyKind::kWrong));
  check(Message::from_bytes(table.reply(*message).to_bytes()).has_value());
  return reply.kind != static_cast<uint8_t>(ReplyKind::kWrong);
}

bool read_frames(std::string_view bytes, bool has_macs) {
  bool understood = false;
  Framing server(Framing::Side::kServer);
  if (has_macs) {
    server.authenticate_with(MacKey::of_token("corpus"));
    server.trust();
  }
  for (size_t at = 0; at < bytes.size(); at += 7) {
    server.add(bytes.substr(at, 7));
    while (const auto payload = server.take()) {
      check(payload->size() <= bytes.size());
      understood = read_message(*payload) || understood;
    }
  }
  return understood;
}

bool read_connection_handshake(std::string_view bytes) {
  const auto message = Message::from_bytes(bytes);
  if (!message) return false;
  bool understood = false;
  for (const MessageKind kind : {MessageKind::kMemberNonce, MessageKind::kServerNonce}) {
    const auto nonce = parse_nonce(*message, kind);
    check(!nonce || !nonce->empty());
    understood = understood || nonce.has_value();
  }
  for (const MessageKind kind : {MessageKind::kMember, MessageKind::kServer}) {
    understood =
        understood || (message->is(kind, 1) && Hello::from_text(message->fields[0]).has_value());
  }
  return understood;
}

bool read_hello(std::string_view bytes) {
  const auto hello = Hello::from_text(std::string(bytes));
  if (!hello) return false;
  check(hello->rank >= 0 && hello->rank < hello->world_size &&
        hello->world_size <= Hello::kMaxRanks && hello->pid > 0);
  const auto again = Hello::from_text(hello->to_text());
  check(again && again->rank == hello->rank && again->host == hello->host);
  return true;
}

bool read_range(std::string_view bytes) {
  const auto range = shm::SharedRange::from_text(std::string(bytes));
  if (!range) return false;
  check(range->pid > 0 && range->fd >= 0);
  const auto again = shm::SharedRange::from_text(range->to_text());
  check(again && again->segment == range->segment && again->fd == range->fd);
  return true;
}

/// Parses a file's first bytes as if all data promised by its header followed.
bool read_safetensors(std::string_view bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  const auto json_bytes = SafetensorsHeader::json_bytes(bytes, size);
  if (!json_bytes.ok()) return false;
  check(*json_bytes <= size - SafetensorsHeader::kLengthBytes);
  const std::string_view json =
      bytes.substr(SafetensorsHeader::kLengthBytes, static_cast<size_t>(*json_bytes));
  const auto header = SafetensorsHeader::from_json(json, kDataOfCorpus);
  if (!header.ok()) return false;
  int64_t end = 0;
  for (const SafetensorsTensor& tensor : header->tensors) {
    check(tensor.begin == end && tensor.end >= end);
    check(bytes_of(tensor.shape, tensor.dtype) == tensor.end - tensor.begin);
    end = tensor.end;
  }
  check(end == kDataOfCorpus);
  const auto again = header->to_bytes();
  check(again.ok());
  const auto same = SafetensorsHeader::from_json(
      std::string_view(*again).substr(SafetensorsHeader::kLengthBytes), kDataOfCorpus);
  check(same.ok() && same->metadata == header->metadata);
  return true;
}

/// Parses a manifest given without its checksum, which is added here, because the code behind the
/// checksum must be reached.
bool read_manifest(std::string_view bytes) {
  const auto manifest = Manifest::from_text(std::string(bytes) + Manifest::trailer(bytes));
  if (!manifest.ok()) return false;
  check(manifest->problem().empty());
  for (const auto& [name, entry] : manifest->entries) {
    for (const ManifestPiece& piece : entry.pieces) {
      const int64_t size = (piece.end - piece.begin) * entry.form.element_bytes();
      check(piece.offset + size <= manifest->files.at(static_cast<size_t>(piece.file)).bytes);
    }
  }
  const auto text = manifest->to_text();
  check(text.ok() && Manifest::from_text(*text).ok());
  return true;
}

bool read_shard_summary(std::string_view bytes) {
  const auto summary = ShardSummary::from_text(bytes);
  if (!summary.ok()) return false;
  const auto text = summary->to_text();
  check(text.ok());
  const auto again = ShardSummary::from_text(*text);
  check(again.ok() && *again == *summary);
  return true;
}

/// The layout that a rank in a world of one writes.
ShardLayout layout() {
  const EntryForm matrix{.sizes = {2, 3}, .strides = {3, 1}, .dtype = at::kFloat};
  const EntryForm number{.sizes = {}, .strides = {}, .dtype = at::kLong};
  const std::string nonce = "0123456789abcdef0123456789abcdef";
  return *ShardLayout::make({.nonce = nonce, .step = 7, .rank = 0, .world = 1},
                            {{.entry = "m", .form = matrix, .begin = 0, .end = 2},
                             {.entry = "m", .form = matrix, .begin = 2, .end = 6},
                             {.entry = "n", .form = number, .begin = 0, .end = 1}});
}

ShardSummary summary() {
  const ShardLayout one = layout();
  return {.nonce = one.identity().nonce,
          .step = one.identity().step,
          .rank = 0,
          .file = {.name = "rank-00000-of-00001.safetensors",
                   .bytes = one.file_bytes(),
                   .checksums = {12345}},
          .entries = one.entries()};
}

std::string manifest_without_trailer() {
  const ShardSummary one = summary();
  const Manifest manifest{.nonce = one.nonce,
                          .step = one.step,
                          .world = 1,
                          .degrees = {1, 1, 1},
                          .options = {{"strategy", "ddp"}},
                          .extras = {{"a", 1.5}, {"b", int64_t{2}}, {"c", "text"}},
                          .files = {one.file},
                          .entries = one.entries};
  const std::string text = *manifest.to_text();
  return text.substr(0, text.size() - Manifest::trailer("").size());
}

}  // namespace

bool read_input(std::string_view input) {
  if (input.empty()) return false;
  const auto parser = static_cast<Parser>(static_cast<uint8_t>(input[0]) % kParsers);
  input.remove_prefix(1);
  switch (parser) {
    case Parser::kMessage:
      return read_message(input);
    case Parser::kRequest:
      return read_request(input);
    case Parser::kFrames:
      return read_frames(input, false);
    case Parser::kFramesWithMacs:
      return read_frames(input, true);
    case Parser::kConnectionHandshake:
      return read_connection_handshake(input);
    case Parser::kHello:
      return read_hello(input);
    case Parser::kRange:
      return read_range(input);
    case Parser::kSafetensors:
      return read_safetensors(input);
    case Parser::kManifest:
      return read_manifest(input);
    case Parser::kShardSummary:
      return read_shard_summary(input);
  }
  return false;
}

std::vector<std::string> corpus() {
  std::vector<std::string> inputs;
  const Message texts{.kind = 7, .fields = {"", "a", "some bytes"}};
  inputs.push_back(input_for(Parser::kMessage, texts.to_bytes()));
  for (uint8_t kind = 0; kind <= static_cast<uint8_t>(RequestKind::kErase); ++kind) {
    for (const size_t fields : {0, 1, 2, 3}) {
      const Message request{.kind = kind, .fields = std::vector<std::string>(fields, "12")};
      inputs.push_back(input_for(Parser::kRequest, request.to_bytes()));
    }
  }
  Framing plain(Framing::Side::kMember);
  std::string frames = plain.wrap(texts.to_bytes());
  frames += plain.wrap("x");
  inputs.push_back(input_for(Parser::kFrames, frames));
  Framing authenticated(Framing::Side::kMember);
  authenticated.authenticate_with(MacKey::of_token("corpus"));
  frames = authenticated.wrap(texts.to_bytes());
  frames += authenticated.wrap("x");
  inputs.push_back(input_for(Parser::kFramesWithMacs, frames));
  const std::string hello = Hello::of_this_process(1, 3, "cpu", "a build").to_text();
  for (const Message& message :
       {Message::of(MessageKind::kMemberNonce, {kMeetingProtocol, "0123"}),
        Message::of(MessageKind::kServerNonce, {kMeetingProtocol, "4567"}),
        Message::of(MessageKind::kMember, {hello}), Message::of(MessageKind::kServer, {hello})}) {
    inputs.push_back(input_for(Parser::kConnectionHandshake, message.to_bytes()));
  }
  inputs.push_back(input_for(Parser::kHello, hello));
  const shm::SharedRange range{
      .segment = {.device = 1, .inode = 77}, .segment_bytes = 4096, .pid = 300, .fd = 8};
  inputs.push_back(input_for(Parser::kRange, range.to_text()));
  inputs.push_back(input_for(Parser::kSafetensors, layout().header()));
  inputs.push_back(input_for(Parser::kManifest, manifest_without_trailer()));
  inputs.push_back(input_for(Parser::kShardSummary, *summary().to_text()));
  return inputs;
}

std::vector<std::string> found_inputs() {
  std::vector<std::string> inputs;
  std::ifstream lines(TESSERA_FUZZ_CORPUS);
  for (std::string line; std::getline(lines, line);) {
    check(absl::Base64Unescape(line, &inputs.emplace_back()));
  }
  return inputs;
}

}  // namespace tessera::internal::fuzz

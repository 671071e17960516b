#pragma once

#include <map>
#include <string>

#include "tessera/checkpoint/format/json.h"
#include "tessera/checkpoint/format/manifest.h"

namespace tessera::internal {

// Parts of a manifest as JSON. The read_* functions set `problem` if the JSON is no such part. They
// check kinds and ranges of single values; Manifest::problem() checks consistency.

Json to_json(const ManifestFile& file);
Json to_json(const std::map<std::string, ManifestEntry>& entries);
Json to_json(const Extra& extra);

ManifestFile read_file(const Json& json, std::string& problem);
std::map<std::string, ManifestEntry> read_entries(const Json& json, std::string& problem);
Extra read_extra(const std::string& name, const Json& json, std::string& problem);

}  // namespace tessera::internal

#include "tessera/record_errors.h"

#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <fstream>
#include <string>

#include <absl/strings/str_cat.h>
#include <nlohmann/json.hpp>

#include "tessera/core/process/error_text.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/environment.h"

namespace tessera {
namespace {

/// As PyTorch's workers write it, at once: a part of a file would end torchrun itself.
void write_error_file(const std::string& path, const std::string& text) {
  const nlohmann::ordered_json content = {
      {"message",
       {{"message", text},
        {"extraInfo", {{"py_callstack", ""}, {"timestamp", absl::StrCat(std::time(nullptr))}}}}}};
  const std::string part = absl::StrCat(path, ".", ::getpid());
  std::ofstream file(part);
  file << content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  const bool is_whole = file.good();
  file.close();
  if (!is_whole || std::rename(part.c_str(), path.c_str()) != 0) ::unlink(part.c_str());
}

}  // namespace

int record_errors(const std::function<int()>& body) {
  std::string text;
  int exit_code = 1;
  try {
    return body();
  } catch (...) {
    text = internal::present_error_text();
    exit_code = internal::present_error_exit_code();
  }
  internal::report_last_error(text);
  const std::string path = process_environment("TORCHELASTIC_ERROR_FILE").value_or("");
  if (!path.empty()) write_error_file(path, text);
  std::fprintf(stderr, "%s\n", text.c_str());
  return exit_code;
}

}  // namespace tessera

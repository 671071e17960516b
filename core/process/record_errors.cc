#include "tessera/record_errors.h"

#include <cstdio>
#include <string>

#include "tessera/core/process/error_file.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/environment.h"

namespace tessera {
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
  if (!path.empty()) internal::write_error_file(path, text);
  std::fprintf(stderr, "%s\n", text.c_str());
  return exit_code;
}

}  // namespace tessera

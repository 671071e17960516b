#pragma once

#include <cstdio>
#include <memory>
#include <string>

namespace prove {

/// Writes one line of numbers for each step, in hexadecimal ("%a"), so that no digit is lost.
class StepLog {
 public:
  /// Throws c10::Error if `path` cannot be written; an empty path writes nothing.
  explicit StepLog(const std::string& path);

  void add(double loss);
  void add(double loss, double gradient_norm);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace prove

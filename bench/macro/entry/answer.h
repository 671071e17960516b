#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

/// One line of JSON for the runner, for names and numbers that need no escaping.
class Answer {
 public:
  explicit Answer(std::string_view event);

  Answer& add(std::string_view name, int64_t value);
  Answer& add(std::string_view name, double value);
  Answer& add(std::string_view name, const std::vector<double>& values);

  /// Writes the line to standard output, at once.
  void send() const;

 private:
  std::string text_;
};

}  // namespace bench

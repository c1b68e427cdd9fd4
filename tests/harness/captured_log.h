// CapturedLog: captures what is logged while it lives, instead of showing it on the terminal.
#pragma once

#include <memory>
#include <sstream>
#include <string>

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

namespace dstrain::testing {

class CapturedLog {
 public:
  CapturedLog() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "captured", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)));
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  ~CapturedLog() { spdlog::set_default_logger(before_); }

  [[nodiscard]] std::string text() const { return text_.str(); }
  [[nodiscard]] int lines_with(const std::string& part) const {
    std::istringstream lines(text_.str());
    int count = 0;
    for (std::string line; std::getline(lines, line);) {
      count += line.find(part) != std::string::npos;
    }
    return count;
  }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> before_;
};

}  // namespace dstrain::testing

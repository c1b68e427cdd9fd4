#include "cmd/logging.h"

#include <cstdlib>
#include <memory>
#include <string_view>

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

namespace dstrain {
namespace {

/// Pattern flag: nothing for what is normal, else the level and a colon.
class LevelTag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message,
              const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string_view tag = text_of(message.level);
    out.append(tag.data(), tag.data() + tag.size());
  }
  [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<LevelTag>();
  }

 private:
  static std::string_view text_of(spdlog::level::level_enum level) {
    switch (level) {
      case spdlog::level::trace:
        return "trace: ";
      case spdlog::level::debug:
        return "debug: ";
      case spdlog::level::warn:
        return "warning: ";
      case spdlog::level::err:
      case spdlog::level::critical:
        return "error: ";
      default:
        return {};
    }
  }
};

}  // namespace

void set_up_logging(const std::string& tag) {
  // On a terminal the line may have to cover a longer status line.
  const std::string erase = isatty(STDERR_FILENO) == 1 ? "\x1b[K" : "";
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<LevelTag>('*').set_pattern(erase + tag + "%H:%M:%S %*%v");
  auto logger = std::make_shared<spdlog::logger>("dstrain",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(std::move(formatter));
  if (const char* level = std::getenv("DSTRAIN_LOG_LEVEL")) {
    logger->set_level(spdlog::level::from_str(level));
  }
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace dstrain

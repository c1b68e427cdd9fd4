#include "cmd/logging.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "launcher/supervision/screen_text.h"

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

/// Pattern flag: the message, which may hold names that are other people's, as a terminal may have
/// it.
class SafeMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message,
              const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string text =
        launcher::without_controls({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<SafeMessage>();
  }
};

/// https://no-color.org
bool wants_colour(int fd) {
  const char* const refusal = std::getenv("NO_COLOR");
  return isatty(fd) == 1 && (refusal == nullptr || *refusal == '\0');
}

}  // namespace

void set_up_logging(const std::string& tag) {
  // The line may have to cover a longer status line on a terminal.
  const std::string erase = isatty(STDERR_FILENO) == 1 ? "\x1b[K" : "";
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<LevelTag>('*').add_flag<SafeMessage>('q').set_pattern(erase + tag +
                                                                            "%H:%M:%S %^%*%$%q");
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(
      wants_colour(STDERR_FILENO) ? spdlog::color_mode::always : spdlog::color_mode::never);
  sink->set_color(spdlog::level::warn, sink->yellow);
  sink->set_color(spdlog::level::err, sink->red);
  sink->set_color(spdlog::level::critical, sink->red);
  auto logger = std::make_shared<spdlog::logger>("dstrain", std::move(sink));
  logger->set_formatter(std::move(formatter));
  if (const char* level = std::getenv("DSTRAIN_LOG_LEVEL")) {
    logger->set_level(spdlog::level::from_str(level));
  }
  spdlog::set_default_logger(std::move(logger));
}

void print_error(const std::string& message) {
  const bool on_terminal = isatty(STDERR_FILENO) == 1;
  const bool coloured = wants_colour(STDERR_FILENO);
  const std::string line = (on_terminal ? "\x1b[K" : "") +
                           (coloured ? launcher::with_coloured_level(kErrorPrefix) : kErrorPrefix) +
                           launcher::without_controls(message) + "\n";
  // The line may be lost (the terminal may be gone); the exit code tells the same.
  static_cast<void>(std::fwrite(line.data(), 1, line.size(), stderr));
}

}  // namespace dstrain

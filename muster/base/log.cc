// How it works: spdlog formats the lines, and a sink of our own writes them, which does not wait
// for ever for a reader that has stopped.
#include "muster/base/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <optional>

#include "muster/base/clock.h"
#include "muster/base/env.h"
#include "muster/base/patient_write.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// Writes to standard error, for a program that has more to do than to wait for whoever reads it. A
// reader that has stopped once gets no more patience until it reads again.
class PatientSink final : public spdlog::sinks::base_sink<std::mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    const auto limit = stopped_ ? milliseconds(0) : kReaderPatience;
    stopped_ = !write_within(STDERR_FILENO, {line.data(), line.size()}, limit);
  }
  void flush_() override {}

  bool stopped_ = false;
};

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warn:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// Nothing for a name that is none: spdlog takes that for "off".
std::optional<spdlog::level::level_enum> parse_level(const std::string& given) {
  const std::string name = lower_case(given);
  const auto level = spdlog::level::from_str(name);
  const bool is_unknown = level == spdlog::level::off && name != "off";
  return is_unknown ? std::nullopt : std::optional(level);
}

// The level comes from the environment. A wrong one is told of once, however often the name
// changes.
std::shared_ptr<spdlog::logger> make_logger(const std::string& name) {
  auto logger = std::make_shared<spdlog::logger>(name, std::make_shared<PatientSink>());
  logger->set_pattern("[%n] %l: %v");
  const std::string wanted = get_env("MUSTER_LOG_LEVEL").value_or("info");
  const auto level = parse_level(wanted);
  logger->set_level(level.value_or(spdlog::level::info));
  static std::once_flag warned;
  if (!level) {
    std::call_once(warned, [&] {
      logger->warn(cat("MUSTER_LOG_LEVEL: expected debug, info, warn, error or off, got '",
                       printable(wanted),
                       "'; info is used"));
    });
  }
  return logger;
}

std::shared_ptr<spdlog::logger>& logger() {
  static std::shared_ptr<spdlog::logger> instance = make_logger("muster");
  return instance;
}

}  // namespace

void log(LogLevel level, const std::string& text) {
  logger()->log(spdlog_level(level), printable_lines(text));
}

void set_log_name(const std::string& name) {
  logger() = make_logger(name);
}

}  // namespace muster

#include "muster/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "muster/base/env.h"

namespace muster {

namespace {

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

std::shared_ptr<spdlog::logger> make_logger(const std::string& name) {
  auto logger = std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("[%n] %l: %v");
  logger->set_level(spdlog::level::from_str(get_env("MUSTER_LOG_LEVEL").value_or("info")));
  return logger;
}

std::shared_ptr<spdlog::logger>& logger() {
  static std::shared_ptr<spdlog::logger> instance = make_logger("muster");
  return instance;
}

}  // namespace

void log(LogLevel level, const std::string& text) {
  logger()->log(spdlog_level(level), text);
}

void set_log_name(const std::string& name) {
  logger() = make_logger(name);
}

}  // namespace muster

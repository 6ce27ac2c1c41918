// Log lines on standard error: `[muster] warn: text`, with the rank if known.
// MUSTER_LOG_LEVEL = debug | info | warn | error | off (default info), in any case.
#pragma once

#include <string>

#include "muster/base/strings.h"

namespace muster {

enum class LogLevel { debug, info, warn, error };

// Writes one line, or nothing when the level is filtered out. Thread-safe.
// Blocking: at most five seconds; a reader that has taken nothing for that long is not waited for
// again.
void log(LogLevel level, const std::string& text);
// The same with a text in parts, which cat() joins.
template <class First, class Second, class... More>
void log(LogLevel level, const First& first, const Second& second, const More&... more) {
  log(level, cat(first, second, more...));
}

// The same at one level, as log_warning("rank ", 3, " waits").
template <class... Parts>
void log_debug(const Parts&... parts) {
  log(LogLevel::debug, cat(parts...));
}
template <class... Parts>
void log_info(const Parts&... parts) {
  log(LogLevel::info, cat(parts...));
}
template <class... Parts>
void log_warning(const Parts&... parts) {
  log(LogLevel::warn, cat(parts...));
}
template <class... Parts>
void log_error(const Parts&... parts) {
  log(LogLevel::error, cat(parts...));
}

// The prefix of every later line, e.g. "muster" (default) or "rank 3".
void set_log_name(const std::string& name);

}  // namespace muster

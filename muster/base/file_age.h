// How long ago a file was written, where that is all that tells whether it still counts: its writer
// may be on another host.
#pragma once

#include <chrono>
#include <filesystem>
#include <system_error>

#include "muster/base/clock.h"

namespace muster {

// Whether it was written less than `age` ago. A file that is not there was not. One from further in
// the future than the clock of a file server goes ahead is old: the clock was set back since.
inline bool is_younger_than(const std::filesystem::path& file, std::chrono::seconds age) {
  constexpr std::chrono::minutes kAhead{1};
  std::error_code error;
  const auto written = std::filesystem::last_write_time(file, error);
  const auto ago = std::filesystem::file_time_type::clock::now() - written;
  return !error && ago < age && ago > -kAhead;
}

}  // namespace muster

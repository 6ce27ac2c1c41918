// The program that runs: for who starts it again, here or on another host.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace muster {

// Its path; "muster" where /proc does not tell it.
inline std::string own_program() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "muster" : path.string();
}

}  // namespace muster

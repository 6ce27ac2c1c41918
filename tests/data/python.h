// Runs a Python script with PyTorch, where there is one, to compare with.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>

namespace muster::test {

// What `script` (under the source folder) prints with `arguments`; nothing when there is no Python
// for it or the script ended with 77, because a module that it needs is not installed. Throws when
// it fails.
inline std::optional<std::string> run_python(const std::string& script,
                                             const std::string& arguments = "") {
  const std::string python = std::string(MUSTER_SOURCE_DIR) + "/.deps/torch/bin/python";
  const std::string command = "test -x '" + python + "' || exit 77; '" + python +
                              "' -B '" MUSTER_SOURCE_DIR "/" + script + "' " + arguments;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr)
    throw std::runtime_error("popen failed");
  std::string output;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
    output.append(buffer, n);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    return std::nullopt;
  if (status != 0)
    throw std::runtime_error(script + " failed");
  return output;
}

}  // namespace muster::test

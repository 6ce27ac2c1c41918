// Folders and paths: what is there, and what the current folder completes, where that may have been
// removed.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "muster/base/lists.h"

namespace muster {

using Paths = std::vector<std::filesystem::path>;

// What is in the folder, in no order; nothing when it cannot be read.
Paths paths_in(const std::filesystem::path& folder);
// The same; what could be read, where `error` is set then.
Paths paths_in(const std::filesystem::path& folder, std::error_code& error);

// Whether something is there, behind links too; what cannot be seen is not.
inline bool path_exists(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// Whether a folder is there, behind links too.
inline bool is_folder(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

// The path's last part: "run.json" of "runs/digits/run.json".
inline std::string file_name(const std::filesystem::path& path) {
  return path.filename().string();
}

// Those of the names there that are numbers, as of processes in /proc, in order.
Ints numbers_in_folder(const std::filesystem::path& folder);

// Throws: io, when it has been removed.
std::string current_folder();

// The path from the root. One that begins there already needs no current folder. Throws: io.
std::string absolute_path(const std::string& path);

}  // namespace muster

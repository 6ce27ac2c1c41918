// Paths that the current folder completes, where that may have been removed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace muster {

// What is in the folder, in no order; nothing when it cannot be read.
std::vector<std::filesystem::path> paths_in(const std::filesystem::path& folder);

// Throws: io, when it has been removed.
std::string current_folder();

// The path from the root. One that begins there already needs no current folder. Throws: io.
std::string absolute_path(const std::string& path);

}  // namespace muster

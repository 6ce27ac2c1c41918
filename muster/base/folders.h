// Paths that the current folder completes, where that may have been removed.
#pragma once

#include <string>

namespace muster {

// Throws: io, when it has been removed.
std::string current_folder();

// `path` from the root; one that is so already needs no current folder. Throws: io.
std::string absolute_path(const std::string& path);

}  // namespace muster

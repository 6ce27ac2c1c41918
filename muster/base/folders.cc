// How it works: the standard library's calls, whose errors are said with what to do about them.
#include "muster/base/folders.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {

namespace fs = std::filesystem;

// An entry that cannot be read ends the list, since what comes after it is unknown.
Paths paths_in(const fs::path& folder, std::error_code& error) {
  Paths paths;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    paths.push_back(entry->path());
  return paths;
}

Paths paths_in(const fs::path& folder) {
  std::error_code ignored;
  return paths_in(folder, ignored);
}

Ints numbers_in_folder(const fs::path& folder) {
  auto numbers = mapped_some(paths_in(folder),
                             [](const fs::path& path) { return parse_count(file_name(path)); });
  std::ranges::sort(numbers);
  return numbers;
}

// The folder may have been removed while the process was in it.
std::string current_folder() {
  std::error_code error;
  const fs::path folder = fs::current_path(error);
  if (!error)
    return folder.string();
  throw Error(ErrorCode::io,
              "cannot find the current folder (",
              error.message(),
              "): it has been removed; change to one that exists");
}

// Only a relative path needs the current folder.
std::string absolute_path(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  if (!error)
    return absolute.string();
  throw Error(ErrorCode::io,
              "cannot find the folder that '",
              printable(path),
              "' is relative to (",
              error.message(),
              "); change to one that exists, or give an absolute path");
}

}  // namespace muster

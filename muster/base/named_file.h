// Files that a user names, for a picture, a page or a table. They need not be plain files. And
// folders, as far as they are refused alike.
#pragma once

#include <string>
#include <vector>

namespace muster {

// Writes a file that the user has named, as a shell's `>` does: a file is replaced as by
// write_file(), also behind a link; a device, a pipe and an open descriptor (/dev/stdout) is
// written to. Throws: io naming the path.
void write_named_file(const std::string& path, const std::string& bytes);

// The path of the file itself where this one is a link, or leads to it over several; the file need
// not be there.
std::string behind_links(const std::string& path);

inline constexpr auto kWritableFile = "a file that can be written";
inline constexpr auto kWritableFolder = "a folder that can be written";
inline constexpr auto kNewFolder = "a folder that can be made";

// Says that a flag's file or folder is none of these, and why. Throws: invalid_argument.
[[noreturn]] void refuse_named(const char* flag,
                               const char* expected,
                               const std::string& path,
                               const std::string& why);

// Before the work whose result goes there; what is there stays as it is. Throws: as above, if
// write_named_file() could not write there.
void check_named_file(const char* flag, const std::string& path);

// Whether both name the same file, or would; what is written to, and not replaced, is none.
bool is_same_file(const std::string& one, const std::string& other);

// A file that no output may take the place of.
struct ReadFile {
  std::string path{};  // empty: there is none
  std::string why{};   // "the tasks are read from it"
};

// Before a command writes the file of a flag. Throws: as above, if it is one of those that are
// read.
void check_not_read(const char* flag, const std::string& path, const std::vector<ReadFile>& read);

}  // namespace muster

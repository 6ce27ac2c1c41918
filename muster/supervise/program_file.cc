// exec tells a number alone, and tells nothing of an interpreter that begins and then fails of the
// word behind it. So the script's first line is read here as the kernel reads it.
#include "muster/supervise/program_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "muster/base/contains.h"
#include "muster/base/fd.h"
#include "muster/base/text_of.h"

namespace muster {

bool is_regular_file(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

bool is_executable_file(const std::string& path) {
  return is_regular_file(path) && ::access(path.c_str(), X_OK) == 0;
}

SpawnError not_found(const std::string& name, const std::string& why) {
  return {127, printable(cat("cannot start '", name, "': ", why))};
}

SpawnError not_startable(const std::string& name, const std::string& why) {
  return {126, printable(cat("cannot start '", name, "': ", why))};
}

// The path is known not to be an executable file; this says why.
SpawnError cannot_execute(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0)
    return not_found(path, cat(std::strerror(errno), "; correct the path"));
  if (S_ISDIR(info.st_mode))
    return not_startable(path, "it is a directory; name a program in it");
  return not_startable(path, cat("not executable; make it so with: chmod +x ", path));
}

namespace {

// As much of a program's file as the kernel reads for its first line and the line's end.
constexpr size_t kFirstBytes = 256;

std::string first_line(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char bytes[kFirstBytes];
  const ssize_t size = ::read(file.get(), bytes, sizeof(bytes));
  std::string line(bytes, std::max<ssize_t>(size, 0));
  line.resize(std::min(line.find('\n'), line.size()));
  return line;
}

std::string ends_as_on_windows(const std::string& path, const std::string& consequence) {
  return cat("its lines end as on Windows, so that ",
             printable(consequence),
             "; mend it with: sed -i 's/\\r$//' ",
             path);
}

// exec says "no such file" of a script that is there when the interpreter that its first line names
// is not.
std::string missing_interpreter(const std::string& path) {
  const auto line = first_line(path);
  if (!line.starts_with("#!"))
    return "the interpreter that it names was not found";
  const std::string named(trim(std::string_view(line).substr(2)));
  if (!line.ends_with('\r'))
    return cat("its interpreter '", printable(named), "' was not found");
  return ends_as_on_windows(path, cat("no interpreter '", named, "\\r' was found"));
}

bool has_program(const std::string& search_path, const std::string& name) {
  return any_of(split(search_path, ':'), [&](const std::string& folder) {
    return is_executable_file(cat(folder.empty() ? "." : folder, "/", name));
  });
}

}  // namespace

SpawnError cannot_exec(const std::string& path, int errno_value) {
  if (errno_value == ENOENT)
    return not_found(path, missing_interpreter(path));
  if (errno_value != ENOEXEC)
    return not_startable(path, std::strerror(errno_value));
  const auto line = first_line(path);
  if (line.starts_with("#!") && line.size() == kFirstBytes)
    return not_startable(path,
                         cat("its #! line is longer than ",
                             kFirstBytes - 1,
                             " characters; shorten it, or name its interpreter first"));
  return not_startable(path,
                       "neither a program of this machine's kind nor a script with a #! line; "
                       "rebuild it, or name its interpreter first");
}

// A script whose first line ends as on Windows gives its interpreter a word with that end: env
// looks for "python3\r", and a shell has no option "-e\r". Both begin, so that exec tells nothing.
// Others take such a word, as perl does.
void expect_words_without_line_end(const std::string& path, const std::string& search_path) {
  const auto line = first_line(path);
  if (!line.starts_with("#!") || !line.ends_with('\r'))
    return;
  const auto words = words_of(std::string_view(line).substr(2));
  if (words.size() != 2)
    return;
  const auto interpreter = words[0].substr(words[0].rfind('/') + 1);
  const bool is_option = words[1].starts_with('-');
  // Python takes any text behind these two.
  const bool has_text = words[1].starts_with("-W") || words[1].starts_with("-X");
  const bool is_python = interpreter == "python3" && !has_text;
  if (is_option && (is_python || is_one_of(interpreter, "sh", "bash", "dash")))
    throw not_startable(
        path, ends_as_on_windows(path, cat(interpreter, " gets the option '", words[1], "\\r'")));
  if (!is_option && interpreter == "env" && !has_program(search_path, cat(words[1], "\r")))
    throw not_found(path,
                    ends_as_on_windows(path, cat("no interpreter '", words[1], "\\r' was found")));
}

}  // namespace muster

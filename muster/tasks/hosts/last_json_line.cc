#include "muster/tasks/hosts/last_json_line.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/json_depth.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

bool is_json_object(std::string_view line) {
  if (line.size() < 2 || line.front() != '{' || line.back() != '}' || nests_too_deep(line))
    return false;
  return nlohmann::json::parse(line, nullptr, false).is_object();
}

constexpr const char* kNotFinite[] = {"NaN", "Infinity", "-Infinity"};

// How languages print numbers that are not finite, and which of the texts above that is.
struct PrintedName {
  std::string_view printed;
  const char* text;
};
constexpr PrintedName kPrintedNames[] = {{"NaN", "NaN"},
                                         {"Infinity", "Infinity"},
                                         {"-Infinity", "-Infinity"},
                                         {"nan", "NaN"},
                                         {"-nan", "NaN"},
                                         {"inf", "Infinity"},
                                         {"-inf", "-Infinity"}};

// Names of numbers that are not finite, outside of texts, become texts.
std::string with_quoted_names(std::string_view line) {
  std::string quoted;
  bool in_text = false;
  for (size_t at = 0; at < line.size();) {
    const std::string_view rest = line.substr(at);
    const auto* const name = std::find_if(
        std::begin(kPrintedNames), std::end(kPrintedNames), [&](const PrintedName& candidate) {
          return rest.starts_with(candidate.printed);
        });
    if (!in_text && name != std::end(kPrintedNames)) {
      quoted += cat('"', name->text, '"');
      at += name->printed.size();
      continue;
    }
    if (in_text && line[at] == '\\' && at + 1 < line.size())
      quoted += line[at++];  // and what it escapes
    else if (line[at] == '"')
      in_text = !in_text;
    quoted += line[at++];
  }
  return quoted;
}

// Without the prefix that the launcher gives the lines of a job's ranks: "[0] ".
std::string_view without_rank(std::string_view line) {
  const size_t digits_end = line.starts_with('[') ? line.find_first_not_of("0123456789", 1) : 0;
  const bool has_rank = digits_end > 1 && digits_end != std::string_view::npos;
  return has_rank && line.substr(digits_end).starts_with("] ") ? line.substr(digits_end + 2) : line;
}

// The end of the file, at most `max_bytes`; `cut` when that is not all of it.
std::string end_of_file(const std::string& path, size_t max_bytes, bool& cut) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid())
    fail_errno(cat("cannot open ", printable(path)), errno);
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0)
    fail_errno(cat("cannot look at ", printable(path)), errno);
  const auto size = static_cast<size_t>(std::max<off_t>(0, status.st_size));
  const size_t wanted = std::min(size, max_bytes);
  cut = wanted < size;
  // One byte more: whether a line begins exactly where the piece does.
  const size_t before = cut ? 1 : 0;
  std::string text(wanted + before, '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t n = ::pread(file.get(),
                              text.data() + have,
                              text.size() - have,
                              static_cast<off_t>(size - wanted - before + have));
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      fail_errno(cat("cannot read ", printable(path)), errno);
    if (n == 0)
      break;  // it was cut meanwhile
    have += static_cast<size_t>(n);
  }
  text.resize(have);
  return text;
}

}  // namespace

std::string last_json_line(const std::string& path, size_t max_bytes) {
  bool cut = false;
  std::string text = end_of_file(path, max_bytes, cut);
  if (cut) {
    const size_t end = text.find('\n');
    if (end == std::string::npos)
      return "";
    text.erase(0, end + 1);
  }
  return last_json_line_of(text);
}

std::string last_json_line_of(const std::string& text) {
  for (size_t end = text.size();;) {
    const size_t newline = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
    const size_t begin = newline == std::string::npos ? 0 : newline + 1;
    const std::string_view line =
        without_rank(trim(std::string_view(text).substr(begin, end - begin)));
    if (is_json_object(line))
      return std::string(line);
    if (std::string quoted = with_quoted_names(line);
        quoted.size() > line.size() && is_json_object(quoted))
      return quoted;
    if (newline == std::string::npos)
      return "";
    end = newline;
  }
}

std::string not_finite_field(const std::string& json_line,
                             const std::map<std::string, std::string>& parameters) {
  if (json_line.empty())
    return "";
  const auto object = nlohmann::ordered_json::parse(json_line, nullptr, false);
  if (!object.is_object())
    return "";
  for (const auto& [name, value] : object.items()) {
    if (!value.is_string())
      continue;
    if (parameters.contains(name))
      continue;
    const auto text = value.get<std::string>();
    if (std::find(std::begin(kNotFinite), std::end(kNotFinite), text) != std::end(kNotFinite))
      return cat(printable(name), " is ", text);
  }
  return "";
}

}  // namespace muster

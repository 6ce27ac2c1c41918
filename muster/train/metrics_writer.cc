// A line is written by one call, so that a reader never sees half of one. Lines of steps that a
// training takes again are moved to another file, never deleted.
#include "muster/train/metrics_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/json_member.h"
#include "muster/base/named_file.h"
#include "muster/base/process_lock.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

using MetricsJson = nlohmann::ordered_json;

// Whole numbers are written without a fraction.
MetricsJson number_of(double value) {
  constexpr double kWhole = 9007199254740992;  // up to here every whole number is a double
  if (std::trunc(value) == value && std::abs(value) <= kWhole)
    return static_cast<int64_t>(value);
  return value;
}

std::string name_of_no_number(double value) {
  if (std::isnan(value))
    return "NaN";
  return value > 0 ? "Infinity" : "-Infinity";
}

// Returns nothing for a line without a step, which a program may have written.
std::optional<double> step_of(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto step = member_or_null(json, "step");
  if (!step.is_number())
    return std::nullopt;
  return step.get<double>();
}

// Returns where the first line begins that is later, or not whole; the text's size if there is
// none. A step that is smaller than the one before it begins another training, and the lines of
// earlier trainings stay. For step 0 all lines go.
size_t begin_of_later(int64_t step, std::string_view text) {
  size_t later = text.size();
  double before = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    if (end == npos)
      return std::min(later, at);
    if (const auto here = step_of(text.substr(at, end - at))) {
      if (*here < before && step > 0)
        later = text.size();  // another training begins
      before = *here;
      if (*here > static_cast<double>(step))
        later = std::min(later, at);
    }
    at = end + 1;
  }
  return later;
}

// O_APPEND, so that a line lands at the end whatever was cut off before.
Fd open_to_append(const std::string& path) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file.valid())
    fail_errno(cat("metrics: cannot open '", path, "'"), errno);
  return file;
}

// What the launcher says.
JobLaunch job_of_environment() {
  return {.launch = get_env("MUSTER_LAUNCH").value_or(""),
          .attempt = parse_count(get_env("MUSTER_ATTEMPT").value_or("")).value_or(0)};
}

// Two processes would mix their lines, and move each other's aside. A terminal, a pipe or /dev/null
// is anybody's. The lock lies beside the file itself, which the path may be a link to. It is taken
// before the file is made, so that who is refused leaves none. A folder that is not there gets no
// file either.
std::shared_ptr<const FolderLock> lock_of(const std::string& path) {
  struct stat there{};
  if (::stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode))
    return nullptr;
  std::error_code error;
  const fs::path file = fs::weakly_canonical(fs::absolute(behind_links(path), error), error);
  if (error || !fs::is_directory(file.parent_path(), error))
    return nullptr;
  const auto name = cat(".", file.filename().string(), ".lock");
  return lock_for_process(
      file.parent_path().string(), name, job_of_environment(), "metrics", "writes");
}

}  // namespace

MetricsWriter::MetricsWriter(const std::string& path) : path_(path) {
  if (path.empty())
    return;
  lock_ = lock_of(path);
  file_ = open_to_append(path);
}

// Returns how many lines were moved.
int64_t MetricsWriter::continue_after(int64_t step) {
  if (!file_.valid())
    return 0;
  const std::string text = read_file(path_);
  const size_t begin = begin_of_later(step, text);
  if (begin == text.size())
    return 0;
  std::string moved = text.substr(begin);
  if (!moved.ends_with('\n'))
    moved += '\n';
  // The lines are copied before they are cut off, so that at no moment they are nowhere.
  const std::string aside = path_ + ".replaced";
  append_whole(open_to_append(aside).get(), moved, aside);
  if (::ftruncate(file_.get(), static_cast<off_t>(begin)) != 0)
    fail_errno(cat("metrics: cannot cut '", path_, "'"), errno);
  return std::ranges::count(moved, '\n');
}

void MetricsWriter::write(std::initializer_list<std::pair<const char*, double>> values) {
  write_line({values.begin(), values.end()});
}

// nlohmann writes a number that is not finite as null.
void MetricsWriter::write_line(const std::vector<std::pair<std::string, double>>& values) {
  if (!file_.valid())
    return;
  MetricsJson line;
  for (const auto& [name, value] : values)
    line[name] = number_of(value);
  append_whole(file_.get(), line.dump() + "\n", path_);
}

void check_loss(double loss, int64_t step) {
  if (std::isfinite(loss))
    return;
  throw failed_precondition("loss: expected a finite number, got ",
                            name_of_no_number(loss),
                            " in step ",
                            step,
                            "; lower the learning rate, or look at the data");
}

// Other programs read this line, so what is not finite is a text there.
std::string to_json_line(std::initializer_list<std::pair<const char*, double>> values) {
  MetricsJson line;
  for (const auto& [name, value] : values)
    line[name] = std::isfinite(value) ? number_of(value) : MetricsJson(name_of_no_number(value));
  return line.dump();
}

}  // namespace muster

// How it works: requests and answers are small files, and a request's age is the time at which its
// file was touched. Whoever cannot write asks nobody, which is no error.
#include "muster/trace/hosts_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <string_view>

#include <chrono>
#include <exception>
#include <filesystem>
#include <system_error>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/file_age.h"
#include "muster/base/folders.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kAskedFor{5};
constexpr std::chrono::seconds kFresh{4};  // they are asked for each second
constexpr size_t kMostLateText = 65536;

}  // namespace

std::string hosts_folder(const std::string& run_dir) {
  return run_dir + "/activity/hosts";
}

// The name of an earlier launch is replaced.
void make_hosts_folder(const std::string& run_dir, const std::string& launch) {
  std::error_code error;
  fs::create_directories(hosts_folder(run_dir), error);
  if (launch_of_hosts_folder(run_dir) == launch)
    return;
  try {
    write_file(hosts_folder(run_dir) + "/launch", launch);
  } catch (const std::exception&) {
    return;
  }
}

std::string launch_of_hosts_folder(const std::string& run_dir) {
  try {
    return read_plain_file(hosts_folder(run_dir) + "/launch", kMostLateText);
  } catch (const Error&) {
    return "";
  }
}

bool can_ask_other_hosts(const std::string& run_dir) {
  return path_exists(hosts_folder(run_dir) + "/lock");
}

// The file's time is the request, so that asking again costs little.
void ask_other_hosts(const std::string& run_dir) {
  if (!can_ask_other_hosts(run_dir))
    return;
  const std::string path = hosts_folder(run_dir) + "/asked";
  const Fd asked(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644));
  if (asked.valid())
    ::futimens(asked.get(), nullptr);
}

bool are_other_hosts_asked(const std::string& run_dir) {
  return is_younger_than(hosts_folder(run_dir) + "/asked", kAskedFor);
}

// Readers see the old sample or the new one.
void write_host_sample(const std::string& run_dir, size_t host, const std::string& bytes) {
  write_file(cat(hosts_folder(run_dir), "/", host, ".sample"), bytes);
}

// An agent that has ended leaves an old sample, which says nothing of now.
Strings fresh_host_samples(const std::string& run_dir) {
  const auto is_fresh_sample = [](const fs::path& file) {
    return file.extension() == ".sample" && is_younger_than(file, kFresh);
  };
  return mapped(filtered(paths_in(hosts_folder(run_dir)), is_fresh_sample),
                [](const fs::path& file) { return file.string(); });
}

std::string to_text(const LateRequest& request) {
  return cat(request.attempt, " ", join(request.ranks, " "));
}

std::optional<LateRequest> late_request_from(const std::string& text) {
  Ints numbers;
  for (const std::string_view word : words_of(text)) {
    const auto number = parse_count(word);
    if (!number)
      return std::nullopt;
    numbers.push_back(*number);
  }
  if (numbers.size() < 2)
    return std::nullopt;
  return LateRequest{.attempt = numbers.front(), .ranks = {numbers.begin() + 1, numbers.end()}};
}

// A later request of the same rank takes the place of an earlier one.
bool ask_to_describe(const std::string& run_dir, int asker, const LateRequest& request) {
  if (!can_ask_other_hosts(run_dir))
    return false;
  try {
    write_file(cat(hosts_folder(run_dir), "/late.", asker), to_text(request));
    return true;
  } catch (const std::exception&) {
    return false;  // it may not be written to
  }
}

// A file that cannot be read stays.
std::vector<LateRequest> take_late_requests(const std::string& run_dir) {
  std::vector<LateRequest> requests;
  for (const fs::path& file : paths_in(hosts_folder(run_dir))) {
    if (file.stem() != "late" || !file.has_extension())
      continue;
    try {
      if (const auto request = late_request_from(read_plain_file(file.string(), kMostLateText)))
        requests.push_back(*request);
    } catch (const Error&) {
      continue;
    }
    ::unlink(file.c_str());
  }
  return requests;
}

void remove_host_samples(const std::string& run_dir) {
  const Paths paths = paths_in(hosts_folder(run_dir));
  const bool has_copies = any_of(paths, is_folder);
  for (const fs::path& path : paths) {
    const bool is_launch_of_copies = has_copies && path.filename() == "launch";
    std::error_code failed;
    if (!is_folder(path) && !is_launch_of_copies)
      fs::remove(path, failed);
  }
  ::rmdir(hosts_folder(run_dir).c_str());
}

}  // namespace muster

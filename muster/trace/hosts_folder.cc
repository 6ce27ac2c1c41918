#include "muster/trace/hosts_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kAskedFor{5};
constexpr std::chrono::seconds kFresh{4};  // they are asked for each second
constexpr size_t kMostLateText = 65536;

bool is_younger_than(const fs::path& file, std::chrono::seconds age) {
  std::error_code error;
  const auto written = fs::last_write_time(file, error);
  return !error && fs::file_time_type::clock::now() - written < age;
}

void for_each_file(const std::string& run_dir, const std::function<void(const fs::path&)>& take) {
  std::error_code error;
  for (fs::directory_iterator entry(hosts_folder(run_dir), error), end; !error && entry != end;
       entry.increment(error))
    take(entry->path());
}

}  // namespace

std::string hosts_folder(const std::string& run_dir) {
  return run_dir + "/activity/hosts";
}

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
  std::error_code error;
  return fs::exists(hosts_folder(run_dir) + "/lock", error);
}

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

void write_host_sample(const std::string& run_dir, size_t host, const std::string& bytes) {
  write_file(cat(hosts_folder(run_dir), "/", host, ".sample"), bytes);
}

std::vector<std::string> fresh_host_samples(const std::string& run_dir) {
  std::vector<std::string> files;
  for_each_file(run_dir, [&](const fs::path& file) {
    if (file.extension() == ".sample" && is_younger_than(file, kFresh))
      files.push_back(file.string());
  });
  return files;
}

std::string to_text(const LateRequest& request) {
  return cat(request.attempt, " ", join(request.ranks, " "));
}

std::optional<LateRequest> late_request_from(const std::string& text) {
  LateRequest request;
  const std::vector<std::string> words = split(trim(text), ' ');
  for (size_t i = 0; i < words.size(); ++i) {
    const auto number = parse_int(words[i]);
    if (!number || *number < 0 || *number > INT32_MAX)
      return std::nullopt;
    if (i == 0)
      request.attempt = static_cast<int>(*number);
    if (i > 0)
      request.ranks.push_back(static_cast<int>(*number));
  }
  return request.ranks.empty() ? std::nullopt : std::optional(request);
}

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

std::vector<LateRequest> take_late_requests(const std::string& run_dir) {
  std::vector<fs::path> files;
  for_each_file(run_dir, [&](const fs::path& file) {
    if (file.stem() == "late" && file.has_extension())
      files.push_back(file);
  });
  std::vector<LateRequest> requests;
  for (const fs::path& file : files) {
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
  bool has_copies = false;
  for_each_file(run_dir, [&](const fs::path& file) {
    std::error_code failed;
    has_copies = has_copies || fs::is_directory(file, failed);
  });
  for_each_file(run_dir, [&](const fs::path& file) {
    std::error_code failed;
    if (!fs::is_directory(file, failed) && (!has_copies || file.filename() != "launch"))
      fs::remove(file, failed);
  });
  ::rmdir(hosts_folder(run_dir).c_str());
}

}  // namespace muster

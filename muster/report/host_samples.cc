#include "muster/report/host_samples.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/launch/job_registry.h"
#include "muster/report/top_rows.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kFresh{10};
constexpr size_t kMostBytes = size_t{16} << 20;

fs::path hosts_folder(const std::string& run_dir) {
  return fs::path(run_dir) / "hosts";
}

bool is_fresh(const fs::path& file) {
  std::error_code error;
  const auto written = fs::last_write_time(file, error);
  return !error && fs::file_time_type::clock::now() - written < kFresh;
}

// Of the job that this process launches.
std::unique_ptr<TopSampler> own_sampler() {
  for (const JobNote& job : running_jobs()) {
    if (job.pid == ::getpid()) return std::make_unique<TopSampler>(job.run_dir, job);
  }
  return nullptr;
}

}  // namespace

std::function<std::string(RankRange)> own_rank_sampler() {
  return [sampler = std::shared_ptr<TopSampler>()](RankRange range) mutable {
    if (!sampler) sampler = own_sampler();
    if (!sampler) return pack_top_rows({});
    std::vector<TopRank> ranks = sampler->sample().ranks;
    std::erase_if(ranks, [&](const TopRank& rank) {
      const auto number = static_cast<size_t>(rank.rank);
      return number < range.first || number >= range.first + range.count;
    });
    return pack_top_rows(ranks);
  };
}

bool can_ask_other_hosts(const std::string& run_dir) {
  std::error_code error;
  return fs::is_directory(hosts_folder(run_dir), error);
}

void ask_other_hosts(const std::string& run_dir) {
  if (!can_ask_other_hosts(run_dir)) return;
  const std::string path = hosts_folder(run_dir) / "asked";
  const Fd asked(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644));
  if (asked.valid()) ::futimens(asked.get(), nullptr);
}

std::vector<TopRank> ranks_of_other_hosts(const std::string& run_dir, std::vector<std::string>& problems) {
  std::vector<TopRank> ranks;
  std::error_code error;
  for (fs::directory_iterator entry(hosts_folder(run_dir), error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path& file = entry->path();
    if (file.extension() != ".sample" || !is_fresh(file)) continue;
    try {
      for (TopRank& rank : unpack_top_rows(read_plain_file(file.string(), kMostBytes)))
        ranks.push_back(std::move(rank));
    } catch (const Error& problem) {
      problems.push_back(cat("hosts/", file.filename().string(), ": ", problem.what()));
    }
  }
  return ranks;
}

}  // namespace muster

// `muster top` leaves a wish in the job's folder; the agent of each other host answers with a file
// of its own ranks' rows, made by the same sampler that `muster top` uses here. What a rank uses of
// a CPU is the difference between two looks, so a first look is followed by a second one at once.
#include "muster/report/host_samples.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/json_words.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/launch/job_registry.h"
#include "muster/report/top_rows.h"
#include "muster/trace/hosts_folder.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kOneWatch{5};  // looks further apart belong to two watches
constexpr milliseconds kBetweenLooks{200};
constexpr size_t kMostBytes = size_t{16} << 20;

// Returns a sampler of the job that this process launches; nullptr if it launches none.
std::unique_ptr<TopSampler> own_sampler() {
  const std::vector<JobNote> jobs = running_jobs();
  const JobNote* const own = element_with(jobs, ::getpid(), &JobNote::pid);
  return own != nullptr ? std::make_unique<TopSampler>(own->run_dir, *own) : nullptr;
}

}  // namespace

// The sampler is made at the first look, since the job's note may not be there before.
std::function<std::string(RankRange)> own_rank_sampler() {
  return [sampler = std::shared_ptr<TopSampler>(), last = TimePoint()](RankRange range) mutable {
    if (!sampler)
      sampler = own_sampler();
    if (!sampler)
      return pack_top_rows({});
    const bool is_first_look = Clock::now() - last > kOneWatch;
    TopRanks ranks = sampler->sample(TopSampler::Hosts::this_one).ranks;
    if (is_first_look) {
      std::this_thread::sleep_for(kBetweenLooks);
      ranks = sampler->sample(TopSampler::Hosts::this_one).ranks;
    }
    last = Clock::now();
    std::erase_if(ranks, [&](const TopRank& rank) {
      return std::cmp_less(rank.rank, range.first) ||
             std::cmp_greater_equal(rank.rank, range.first + range.count);
    });
    return pack_top_rows(ranks);
  };
}

TopRanks ranks_of_other_hosts(const std::string& run_dir, Strings& problems) {
  TopRanks ranks;
  for (const auto& file : fresh_host_samples(run_dir)) {
    try {
      for (TopRank& rank : unpack_top_rows(read_plain_file(file, kMostBytes)))
        ranks.push_back(std::move(rank));
    } catch (const Error& problem) {
      problems.push_back(cat("hosts/", file_name(file), ": ", json_words(problem.what())));
    }
  }
  return ranks;
}

}  // namespace muster

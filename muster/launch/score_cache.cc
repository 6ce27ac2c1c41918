#include "muster/launch/score_cache.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/device/strict_json.h"
#include "muster/store/file_lock.h"

namespace muster {
namespace {

constexpr const char* kScoresSchema = "muster.scores/1";
constexpr double kNoise = 0.05;
constexpr const char* kCpu = "cpu";
constexpr std::chrono::seconds kPatience{10};

MeasuredScore entry_from(JsonObject entry) {
  MeasuredScore score{.device = entry.text("device"),
                      .host = entry.text("host"),
                      .model = entry.text("model"),
                      .driver = entry.text("driver"),
                      .dtype = entry.text("dtype"),
                      .score = entry.optional_number("score").value_or(0),
                      .batch_size = entry.integer("batch_size", 1, INT64_MAX),
                      .since_seconds = entry.integer("since_seconds", 0, INT64_MAX)};
  if (!std::isfinite(score.score) || score.score <= 0) {
    entry.fail("score", "a number above 0", cat(score.score));
  }
  entry.finish();
  return score;
}

// By model: the mean of all scores when they are close to each other.
std::map<std::string, double> means_of_models(
    const std::vector<std::pair<std::string, double>>& scores) {
  struct Sum {
    double sum = 0, least = INFINITY, most = 0;
    int count = 0;
  };
  std::map<std::string, Sum> sums;
  for (const auto& [model, score] : scores) {
    Sum& of = sums[model];
    of.sum += score;
    of.least = std::min(of.least, score);
    of.most = std::max(of.most, score);
    ++of.count;
  }
  std::map<std::string, double> means;
  for (const auto& [model, of] : sums) {
    if (of.most - of.least <= kNoise * of.most)
      means[model] = of.sum / of.count;
  }
  return means;
}

// What has no id of its own in the world.
bool belongs_to_host(const std::string& device) {
  return device == kCpu || device.starts_with(kNoUniqueId);
}

bool is_same_device(const MeasuredScore& a, const MeasuredScore& b) {
  return a.device == b.device && a.dtype == b.dtype &&
         (a.host == b.host || !belongs_to_host(a.device));
}

std::string score_text(const std::vector<MeasuredScore>& scores) {
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  for (const MeasuredScore& score : scores) {
    devices.push_back({{"device", score.device},
                       {"host", score.host},
                       {"model", score.model},
                       {"driver", score.driver},
                       {"dtype", score.dtype},
                       {"score", score.score},
                       {"batch_size", score.batch_size},
                       {"since_seconds", score.since_seconds}});
  }
  const nlohmann::ordered_json document = {{"schema", kScoresSchema}, {"devices", devices}};
  return document.dump(2) + "\n";
}

}  // namespace

std::string default_score_cache() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    return cat(cache, "/muster/scores.json");
  }
  const char* home = std::getenv("HOME");
  return home == nullptr || *home != '/' ? "" : cat(home, "/.cache/muster/scores.json");
}

std::vector<MeasuredScore> read_score_cache(const std::string& path) {
  std::vector<MeasuredScore> scores;
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error))
    return scores;
  const std::string what = cat("scores ", path);
  const nlohmann::json json = parse_strict_json(read_small_file(path), what);
  JsonObject document(json, what, "");
  check_schema(document, kScoresSchema);
  for (JsonObject& entry : document.objects("devices"))
    scores.push_back(entry_from(std::move(entry)));
  document.finish();
  return scores;
}

void add_to_score_cache(const std::string& path, const MeasuredScore& score) {
  std::error_code ignored;  // what could not be made, opening says
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const std::string lock_path = path + ".lock";
  const Fd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid())
    fail_errno(cat("cannot create '", lock_path, "'"), errno);
  lock_operation(lock.get(), lock_path, Deadline(kPatience));
  std::vector<MeasuredScore> scores = read_score_cache(path);
  std::erase_if(scores, [&](const MeasuredScore& old) { return is_same_device(old, score); });
  scores.push_back(score);
  write_file(path, score_text(scores));
}

std::string cpu_slot_model(const Host& host) {
  return cat(
      std::max(1, host.num_cores / std::max(1, host.cpu_slots)), " of ", host.num_cores, " cores");
}

const MeasuredScore* find_measured(const std::vector<MeasuredScore>& measured,
                                   const Host& host,
                                   const std::string& device,
                                   const std::string& dtype) {
  for (const MeasuredScore& score : measured) {
    if (score.device != device || score.dtype != dtype)
      continue;
    if (belongs_to_host(device) && score.host != host.name)
      continue;
    if (device == kCpu ? score.model == cpu_slot_model(host) : score.driver == host.driver_version)
      return &score;
  }
  return nullptr;
}

Scores measured_scores(const std::vector<MeasuredScore>& measured, const Inventory& inventory) {
  std::vector<std::pair<std::string, double>> by_model;
  std::vector<const MeasuredScore*> found;
  Scores scores;
  const auto look = [&](const Host& host, const GpuUuid& uuid) {
    if (const MeasuredScore* score = find_measured(measured, host, uuid.value)) {
      found.push_back(score);
      by_model.emplace_back(score->model, score->score);
    }
  };
  for (const Host& host : inventory.hosts) {
    for (const Gpu& gpu : host.gpus) {
      look(host, gpu.uuid);
      for (const MigInstance& instance : gpu.mig)
        look(host, instance.uuid);
    }
    if (const MeasuredScore* cpu = find_measured(measured, host, kCpu)) {
      scores[cat(host.name, ":", kCpu)] = cpu->score;
    }
  }
  const auto means = means_of_models(by_model);
  for (const MeasuredScore* score : found) {
    const auto mean = means.find(score->model);
    scores[score->device] = mean == means.end() ? score->score : mean->second;
  }
  return scores;
}

Scores remembered_scores(const Inventory& inventory) {
  try {
    return measured_scores(read_score_cache(default_score_cache()), inventory);
  } catch (const Error& error) {
    log(LogLevel::warn, cat(error.message(), "; going on without measured scores"));
    return {};
  }
}

bool cover_all(const Scores& scores, const Inventory& inventory, bool cpus) {
  const auto has = [&](const GpuUuid& uuid) {
    return scores.contains(uuid.value);
  };
  const auto covered = [&](const Gpu& gpu) {
    if (gpu.health != kHealthy)
      return true;
    if (!gpu.mig_enabled)
      return has(gpu.uuid);
    return std::all_of(
        gpu.mig.begin(), gpu.mig.end(), [&](const MigInstance& mig) { return has(mig.uuid); });
  };
  return std::all_of(inventory.hosts.begin(), inventory.hosts.end(), [&](const Host& host) {
    return std::all_of(host.gpus.begin(), host.gpus.end(), covered) &&
           (!cpus || scores.contains(cat(host.name, ":", kCpu)));
  });
}

}  // namespace muster

// Scores are kept by device: by UUID, and by host where a device has no id that is unique in the
// world. A score counts only while driver or cores are as they were when it was measured. Devices
// of one model share the mean of their scores, as the differences between them are noise.
#include "muster/launch/score_cache.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/device/strict_json.h"
#include "muster/store/file_lock.h"

namespace muster {
namespace {

constexpr auto kScoresSchema = "muster.scores/1";
constexpr double kNoise = 0.05;  // scores of one model that differ by no more are the same
constexpr auto kCpu = "cpu";
constexpr std::chrono::seconds kPatience{10};

// Throws: invalid_argument that names the member which is wrong.
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

// The mean score of each model whose scores are close to each other.
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

// Whether the device has no id that is unique in the world.
bool belongs_to_host(const std::string& device) {
  return device == kCpu || device.starts_with(kNoUniqueId);
}

// Hosts have the same "cpu", so a device without a unique id is the same on one host only.
bool is_same_device(const MeasuredScore& a, const MeasuredScore& b) {
  if (a.device != b.device || a.dtype != b.dtype)
    return false;
  return a.host == b.host || !belongs_to_host(a.device);
}

// The whole file as text.
std::string score_text(const MeasuredScores& scores) {
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
  const auto cache = get_env("XDG_CACHE_HOME").value_or("");
  if (cache.starts_with('/'))
    return cache + "/muster/scores.json";
  const auto home = get_env("HOME").value_or("");
  return home.starts_with('/') ? home + "/.cache/muster/scores.json" : "";
}

// A file that is not there has no scores.
MeasuredScores read_score_cache(const std::string& path) {
  MeasuredScores scores;
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error))
    return scores;
  const auto what = cat("scores ", path);
  const nlohmann::json json = parse_strict_json(read_small_file(path), what);
  JsonObject document(json, what, "");
  check_schema(document, kScoresSchema);
  for (JsonObject& entry : document.objects("devices"))
    scores.push_back(entry_from(std::move(entry)));
  document.finish();
  return scores;
}

// The lock is on a file of its own, as the cache is replaced as a whole. A score takes the place of
// an earlier one of the same device.
void add_to_score_cache(const std::string& path, const MeasuredScore& score) {
  std::error_code ignored;  // a folder that could not be made is an error of opening
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const auto lock_path = path + ".lock";
  const Fd lock = open_path(lock_path, O_RDWR | O_CREAT, "cannot create", 0600);
  lock_operation(lock.get(), lock_path, Deadline(kPatience));
  MeasuredScores scores = read_score_cache(path);
  std::erase_if(scores, [&](const MeasuredScore& old) { return is_same_device(old, score); });
  scores.push_back(score);
  write_file(path, score_text(scores));
}

std::string cpu_slot_model(const Host& host) {
  const int cores_of_slot = host.num_cores / std::max(1, host.cpu_slots);
  return cat(std::max(1, cores_of_slot), " of ", host.num_cores, " cores");
}

// A CPU slot's score holds for as many cores, a GPU's for the same driver.
const MeasuredScore* find_measured(const MeasuredScores& measured,
                                   const Host& host,
                                   const std::string& device,
                                   const std::string& dtype) {
  const auto is_it = [&](const MeasuredScore& score) {
    if (score.device != device || score.dtype != dtype)
      return false;
    if (belongs_to_host(device) && score.host != host.name)
      return false;
    if (device == kCpu)
      return score.model == cpu_slot_model(host);
    return score.driver == host.driver_version;
  };
  return element_where(measured, is_it);
}

// Scores of MIG instances are kept beside those of their GPUs; CPUs have a score for each host.
Scores measured_scores(const MeasuredScores& measured, const Inventory& inventory) {
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
    scores[score->device] = find_or(means, score->model, score->score);
  }
  return scores;
}

// Measured scores make a plan better and are never needed: a bad file is only a warning.
Scores remembered_scores(const Inventory& inventory) {
  try {
    return measured_scores(read_score_cache(default_score_cache()), inventory);
  } catch (const Error& error) {
    log_warning(error.message(), "; going on without measured scores");
    return {};
  }
}

// A GPU that cannot be used needs no score, and one in MIG mode none of its own.
bool cover_all(const Scores& scores, const Inventory& inventory, bool cpus) {
  const auto has = [&](const GpuUuid& uuid) {
    return scores.contains(uuid.value);
  };
  const auto covered = [&](const Gpu& gpu) {
    if (gpu.health != kHealthy)
      return true;
    if (!gpu.mig_enabled)
      return has(gpu.uuid);
    return all_of(gpu.mig, has, &MigInstance::uuid);
  };
  return all_of(inventory.hosts, [&](const Host& host) {
    const bool has_cpu = scores.contains(cat(host.name, ":", kCpu));
    return all_of(host.gpus, covered) && (has_cpu || !cpus);
  });
}

}  // namespace muster

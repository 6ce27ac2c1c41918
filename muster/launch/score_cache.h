// What `muster bench device` measured, kept for later plans: one JSON file a user, an entry for each device
// and driver. Written by muster-bench; read by the agent, where a plan needs scores and none were given.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/device/inventory.h"
#include "muster/placement/scores.h"

namespace muster {

struct MeasuredScore {
  std::string device = {};  // a UUID, or "cpu" for a CPU slot of `host`
  std::string host = {};
  std::string model = {};
  std::string driver = {};    // a GPU measured with another driver is measured anew
  std::string dtype = {};     // "float32"
  double score = 0;           // training samples a second; only ratios count
  int64_t batch_size = 0;     // that gave it
  int64_t since_seconds = 0;  // when, since 1970
  bool operator==(const MeasuredScore&) const = default;
};

// $XDG_CACHE_HOME/muster/scores.json, else ~/.cache/muster/scores.json; empty when neither is known.
std::string default_score_cache();

// Empty when there is no file. Throws: io; invalid_argument naming the file and the member.
std::vector<MeasuredScore> read_score_cache(const std::string& path);

// Throws: io.
void write_score_cache(const std::string& path, const std::vector<MeasuredScore>& scores);

// The entry for this device of `host`, by UUID and driver; null without one.
const MeasuredScore* find_measured(const std::vector<MeasuredScore>& measured, const Host& host,
                                   const std::string& device);

// For Request::scores: what was measured of these hosts' devices. GPUs of one model that differ by less than
// 5 % have the mean, so that noise divides no batch unequally and reorders nothing.
Scores measured_scores(const std::vector<MeasuredScore>& measured, const Inventory& inventory);

// Whether each healthy GPU of these hosts has a score of its own.
bool has_every_gpu(const Scores& scores, const Inventory& inventory);

}  // namespace muster

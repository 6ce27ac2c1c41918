// Keeps what `muster bench device` measured for later plans: one JSON file a user, an entry for
// each device and number type. Written by muster-bench; read by the launcher, where a plan needs
// scores and none were given.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/device/inventory.h"
#include "muster/placement/selection/scores.h"

namespace muster {

inline constexpr auto kScoreType = "float32";  // whose scores plans are made by

struct MeasuredScore {
  std::string device{};  // a UUID, or "cpu" for a CPU slot of `host`
  std::string host{};
  std::string model{};        // of a CPU slot: cpu_slot_model
  std::string driver{};       // a GPU measured with another driver is measured anew
  std::string dtype{};        // "float32"
  double score = 0;           // training samples a second; only ratios count
  int64_t batch_size = 0;     // that gave it
  int64_t since_seconds = 0;  // when, since 1970
  bool operator==(const MeasuredScore&) const = default;
};
using MeasuredScores = std::vector<MeasuredScore>;

// $XDG_CACHE_HOME/muster/scores.json, else ~/.cache/muster/scores.json; empty when neither is
// known.
std::string default_score_cache();

// Empty when there is no file. Throws: io; invalid_argument naming the file and the member.
MeasuredScores read_score_cache(const std::string& path);

// Adds a score to the file, in place of an earlier one of the same device and type; what others add
// meanwhile stays. Blocking: while another process does the same. Throws: as read_score_cache, and
// timeout.
void add_to_score_cache(const std::string& path, const MeasuredScore& score);

// "2 of 8 cores": what a score of a CPU slot holds for.
std::string cpu_slot_model(const Host& host);

// The entry for this device of `host`, measured with its driver (a CPU slot: of its size) and this
// type; null without one.
const MeasuredScore* find_measured(const MeasuredScores& measured,
                                   const Host& host,
                                   const std::string& device,
                                   const std::string& dtype = kScoreType);

// For Request::scores: what was measured of these hosts' devices. GPUs of one model that differ by
// less than 5 % have the mean, so that noise divides no batch unequally and reorders nothing.
Scores measured_scores(const MeasuredScores& measured, const Inventory& inventory);

// The scores of the default cache. A cache that cannot be read is none, with a warning.
Scores remembered_scores(const Inventory& inventory);

// Whether each healthy GPU of these hosts has a score of its own, and with `cpus` each host's CPU
// slots.
bool cover_all(const Scores& scores, const Inventory& inventory, bool cpus);

}  // namespace muster

// `muster bench device`: the devices are measured one after the other in this process, each GPU
// under a lease, so that no job of muster computes on it meanwhile. A score is written into the
// cache as soon as it is known. A device that cannot be measured is named on standard error, and
// the others are measured all the same.
#include "muster/bench/device_bench.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/bench/training_speed.h"
#include "muster/comm/nccl/nccl.h"
#include "muster/device/probe.h"
#include "muster/draw/text_table.h"
#include "muster/launch/lease.h"
#include "muster/launch/score_cache.h"
#include "muster/placement/selection/gpu_facts.h"
#include "muster/placement/selection/selection.h"
#include "muster/run/error_file.h"
#include "muster/run/rank_device.h"

namespace muster {
namespace {

struct Candidate {
  std::string id;     // a UUID, or "cpu"
  std::string label;  // "GPU 0", "CPU slot (2 of 4 cores)"
  std::string model;
  Device device = kCPU;
  std::string obstacle{};  // why it cannot be measured; empty: it can
};

// Throws: unavailable where no GPU can be used.
std::vector<Candidate> gpu_candidates(const Host& host, const DeviceBenchOptions& options) {
  const Selection selection(options.gpus);
  const UsableGpus usable = usable_gpus(host, inherited_masks());
  if (usable.gpus.empty()) {
    throw unavailable("bench device: expected a GPU, got none: ", describe(host, usable));
  }
  for (const auto& sick : usable.sick)
    std::fputs(cat("left out ", sick, "\n").c_str(), stderr);
  std::vector<Candidate> candidates;
  for (const UsableGpu& gpu : select_gpus(selection, host, usable, {})) {
    Candidate candidate{
        .id = uuid_of(host, gpu).value, .label = label_of(host, gpu), .model = model_of(host, gpu)};
    // A process sees only one MIG instance: the first that the mask names.
    if (gpu.is_instance() && usable.gpus.size() > 1) {
      candidate.obstacle =
          cat("a MIG instance among several; measure it alone, with CUDA_VISIBLE_DEVICES=",
              candidate.id);
    }
    candidate.device = gpu_device(gpu.ordinal.value);
    candidates.push_back(candidate);
  }
  return candidates;
}

// Without GPUs a CPU slot is measured, unless GPUs were asked for.
std::vector<Candidate> candidates_of(const Host& host, const DeviceBenchOptions& options) {
  const bool on_cpu = options.cpu || (host.gpus.empty() && options.gpus.empty());
  if (!on_cpu)
    return gpu_candidates(host, options);
  return {{.id = "cpu", .label = "CPU slot", .model = cpu_slot_model(host)}};
}

// Types in which people train.
ScalarType dtype_of(const std::string& name) {
  if (name == "float32")
    return kFloat;
  if (name == "bfloat16")
    return kBFloat16;
  if (name == "float16")
    return kHalf;
  throw invalid_argument("--dtype: expected float32, bfloat16 or float16, got '", name, "'");
}

class DeviceBench {
 public:
  DeviceBench(const Host& host, const DeviceBenchOptions& options)
      : host_(host), options_(options), dtype_(dtype_of(options.dtype)) {
    path_ = options.cache.empty() ? default_score_cache() : options.cache;
    if (path_.empty())
      throw Error(ErrorCode::io, "bench device: expected HOME or --cache FILE, got neither");
    measured_ = read_score_cache(path_);
  }

  // Returns a score for each candidate that could be measured, in order.
  MeasuredScores run(const std::vector<Candidate>& candidates) {
    MeasuredScores results;
    for (const Candidate& candidate : candidates) {
      const MeasuredScore* known = find_measured(measured_, host_, candidate.id, options_.dtype);
      if (known != nullptr && !options_.again) {
        say(candidate, "measured before; --again measures it again");
        results.push_back(*known);
        continue;
      }
      try {
        results.push_back(measure(candidate));
      } catch (const std::exception& error) {
        say(candidate, cat("not measured: ", describe_exception(error)));
        continue;
      }
      add_to_score_cache(path_, results.back());
    }
    return results;
  }

 private:
  static void say(const Candidate& candidate, const std::string& what) {
    std::fputs(cat(candidate.label, " (", candidate.model, "): ", what, "\n").c_str(), stderr);
  }

  // Throws: what keeps this candidate from being measured.
  MeasuredScore measure(const Candidate& candidate) const {
    if (!candidate.obstacle.empty())
      throw unavailable(candidate.obstacle);
    std::optional<Lease> lease;
    if (candidate.device.is_cuda()) {
      lease = take_lease(candidate);
      check_is_the_gpu(candidate, use_cuda_device(candidate.device));
    } else {
      // A rank in a CPU slot has this part of the cores.
      at::set_num_threads(std::max(1, host_.num_cores / std::max(1, host_.cpu_slots)));
    }
    say(candidate, "measuring ...");
    const TrainingSpeed speed =
        training_speed(candidate.device, {.dtype = dtype_, .seconds = options_.seconds});
    return {.device = candidate.id,
            .host = host_.name,
            .model = candidate.model,
            .driver = host_.driver_version,
            .dtype = options_.dtype,
            .score = speed.samples_per_second,
            .batch_size = speed.batch_size,
            .since_seconds = std::time(nullptr)};
  }

  // Throws: unavailable naming the job that holds the GPU.
  static Lease take_lease(const Candidate& candidate) {
    const LeaseFolder folder;
    auto lease = folder.try_take(
        {candidate.id}, kWholeGpu, {.job = "bench", .program = "muster bench device"});
    if (lease)
      return std::move(*lease);
    const auto holders = folder.holders({candidate.id});
    throw unavailable(holders.empty() ? "held by another job a moment ago" : describe(holders[0]));
  }

  // LibTorch counts only its own vendor's GPUs, so its number may be another GPU's. `uuid` is that
  // of the GPU that it found; only UUIDs of whole GPUs can be compared.
  static void check_is_the_gpu(const Candidate& candidate, const std::string& uuid) {
    const bool comparable = uuid.starts_with("GPU-") && candidate.id.starts_with("GPU-");
    if (!comparable || uuid == candidate.id)
      return;
    throw unavailable(
        "expected LibTorch to find it as ", candidate.device.str(), ", which is ", uuid);
  }

  const Host& host_;
  const DeviceBenchOptions& options_;
  ScalarType dtype_;
  std::string path_;
  MeasuredScores measured_;
};

// Devices are compared with the fastest one.
std::string table(const MeasuredScores& scores) {
  double most = 0;
  for (const MeasuredScore& score : scores)
    most = std::max(most, score.score);
  TableRows rows;
  rows.reserve(scores.size());
  for (const MeasuredScore& score : scores) {
    rows.push_back({score.device,
                    score.model,
                    cat(std::llround(score.score)),
                    cat(score.batch_size),
                    cat(std::lround(100 * score.score / most), " %")});
  }
  return format_table(
      {{"device"}, {"model"}, {"samples/s", true}, {"batch", true}, {"of the fastest", true}},
      rows);
}

// The format is what --scores reads.
std::string json_of(const MeasuredScores& scores) {
  nlohmann::ordered_json devices = nlohmann::ordered_json::object();
  for (const MeasuredScore& score : scores)
    devices[score.device] = score.score;
  return devices.dump(2) + "\n";
}

}  // namespace

int bench_devices(const DeviceBenchOptions& options) {
  // CUDA then counts the GPUs as this machine's inventory does.
  ::setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
  const Host host =
      probe_this_machine({.cpu_slots = options.cpu_slots, .gpus = !options.cpu}).hosts.at(0);
  DeviceBench bench(host, options);
  const auto candidates = candidates_of(host, options);
  const MeasuredScores scores = bench.run(candidates);
  if (!scores.empty())
    write_all(STDOUT_FILENO, options.json ? json_of(scores) : table(scores));
  return scores.size() == candidates.size() ? 0 : 1;
}

}  // namespace muster

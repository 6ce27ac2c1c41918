#include "muster/bench/device_bench.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/bench/training_speed.h"
#include "muster/comm/nccl.h"
#include "muster/device/probe.h"
#include "muster/launch/lease.h"
#include "muster/placement/gpu_facts.h"
#include "muster/launch/score_cache.h"
#include "muster/placement/selection.h"
#include "muster/placement/text_table.h"

namespace muster {
namespace {

struct Candidate {
  std::string id;     // a UUID, or "cpu"
  std::string label;  // "GPU 0", "CPU slot (2 of 4 cores)"
  std::string model;
  c10::Device device = c10::kCPU;
  std::string obstacle = {};  // why it cannot be measured; empty: it can
};

std::vector<Candidate> gpu_candidates(const Host& host, const DeviceBenchOptions& options) {
  const UsableGpus usable = usable_gpus(host, inherited_masks());
  std::vector<Candidate> candidates;
  for (const UsableGpu& gpu : select_gpus(parse_selection(options.gpus), host, usable, {})) {
    Candidate candidate{
        .id = uuid_of(host, gpu).value, .label = label_of(host, gpu), .model = model_of(host, gpu)};
    // One process sees one instance: the first of those that the mask names.
    if (gpu.mig >= 0 && usable.gpus.size() > 1) {
      candidate.obstacle =
          cat("a MIG instance beside others: CUDA_VISIBLE_DEVICES=", candidate.id, " measures it");
    }
    candidate.device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu.ordinal.value));
    candidates.push_back(candidate);
  }
  if (candidates.empty()) {
    throw Error(ErrorCode::unavailable,
                cat("bench device: expected a GPU, got none: ", describe(host, usable)));
  }
  return candidates;
}

int cores_of_slot(const Host& host) {
  return std::max(1, host.num_cores / std::max(1, host.cpu_slots));
}

std::vector<Candidate> candidates_of(const Host& host, const DeviceBenchOptions& options) {
  const bool on_cpu = options.cpu || (host.gpus.empty() && options.gpus.empty());
  if (!on_cpu) return gpu_candidates(host, options);
  const std::string label = cat("CPU slot (", cores_of_slot(host), " of ", host.num_cores, " cores)");
  return {{.id = "cpu", .label = label, .model = "CPU"}};
}

c10::ScalarType dtype_of(const std::string& name) {
  if (name == "float32") return c10::kFloat;
  if (name == "bfloat16") return c10::kBFloat16;
  if (name == "float16") return c10::kHalf;
  throw Error(ErrorCode::invalid_argument,
              cat("--dtype: expected float32, bfloat16 or float16, got '", name, "'"));
}

// One result for each candidate, in order; nothing for one that could not be measured.
class DeviceBench {
 public:
  DeviceBench(const Host& host, const DeviceBenchOptions& options)
      : host_(host), options_(options), dtype_(dtype_of(options.dtype)) {
    path_ = options.cache.empty() ? default_score_cache() : options.cache;
    measured_ = read_score_cache(path_);
  }

  std::vector<MeasuredScore> run(const std::vector<Candidate>& candidates) {
    std::vector<MeasuredScore> results;
    for (const Candidate& candidate : candidates) {
      if (const MeasuredScore* known = remembered(candidate)) {
        say(candidate, "measured before (--again measures anew)");
        results.push_back(*known);
      } else if (const auto score = measure(candidate)) {
        results.push_back(*score);
        remember(*score);
      }
    }
    return results;
  }

 private:
  const MeasuredScore* remembered(const Candidate& candidate) const {
    const MeasuredScore* known = find_measured(measured_, host_, candidate.id);
    return options_.again || known == nullptr || known->dtype != options_.dtype ? nullptr : known;
  }

  static void say(const Candidate& candidate, const std::string& what) {
    std::fputs(cat(candidate.label, " ", candidate.model, ": ", what, "\n").c_str(), stderr);
  }

  std::optional<MeasuredScore> measure(const Candidate& candidate) const {
    if (!candidate.obstacle.empty()) {
      say(candidate, cat("not measured: ", candidate.obstacle));
      return std::nullopt;
    }
    std::optional<Lease> lease;
    if (candidate.device.is_cuda()) {
      const LeaseFolder folder;
      lease = folder.try_take({candidate.id}, kWholeGpu, {.job = "bench", .program = "muster bench device"});
      if (!lease) {
        say(candidate, cat("not measured: ", describe(folder.holders({candidate.id}).at(0))));
        return std::nullopt;
      }
      use_cuda_device(candidate.device);
    } else {
      at::set_num_threads(cores_of_slot(host_));
    }
    say(candidate, "measuring ...");
    const TrainingSpeed speed =
        training_speed(candidate.device, {.dtype = dtype_, .seconds = options_.seconds});
    return MeasuredScore{.device = candidate.id,
                         .host = host_.name,
                         .model = candidate.model,
                         .driver = host_.driver_version,
                         .dtype = options_.dtype,
                         .score = speed.samples_per_second,
                         .batch_size = speed.batch_size,
                         .since_seconds = std::time(nullptr)};
  }

  // One entry a device: an older driver's or another type's is replaced.
  void remember(const MeasuredScore& score) {
    std::erase_if(measured_, [&](const MeasuredScore& old) {
      return old.device == score.device && (score.device != "cpu" || old.host == score.host);
    });
    measured_.push_back(score);
    if (path_.empty()) throw Error(ErrorCode::io, "bench device: expected HOME or --cache FILE, got neither");
    write_score_cache(path_, measured_);
  }

  const Host& host_;
  const DeviceBenchOptions& options_;
  c10::ScalarType dtype_;
  std::string path_;
  std::vector<MeasuredScore> measured_;
};

std::string table(const std::vector<MeasuredScore>& scores) {
  double most = 0;
  for (const MeasuredScore& score : scores) most = std::max(most, score.score);
  std::vector<std::vector<std::string>> rows;
  for (const MeasuredScore& score : scores) {
    rows.push_back({score.device, score.model, cat(std::llround(score.score)), cat(score.batch_size),
                    cat(std::lround(100 * score.score / most), " %")});
  }
  return format_table({{"device"}, {"model"}, {"samples/s", true}, {"batch", true}, {"of the fastest", true}},
                      rows);
}

std::string json_of(const std::vector<MeasuredScore>& scores) {
  nlohmann::ordered_json devices = nlohmann::ordered_json::object();
  for (const MeasuredScore& score : scores) devices[score.device] = score.score;
  return devices.dump(2) + "\n";  // as --scores reads it
}

}  // namespace

int bench_devices(const DeviceBenchOptions& options) {
  ::setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);  // as the machine's GPUs are counted here
  const Host host = probe_this_machine({.cpu_slots = options.cpu_slots, .gpus = !options.cpu}).hosts.at(0);
  DeviceBench bench(host, options);
  const std::vector<Candidate> candidates = candidates_of(host, options);
  const std::vector<MeasuredScore> scores = bench.run(candidates);
  if (!scores.empty()) write_all(STDOUT_FILENO, options.json ? json_of(scores) : table(scores));
  return scores.size() == candidates.size() ? 0 : 1;
}

}  // namespace muster

// Each way of dividing the model over the plan's ranks is a row: how much memory a rank needs, and
// whether it fits into the smallest device. The ways and the formulas are in placement/.
#include "muster/cli/plan_model.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/cli/value_flags.h"
#include "muster/draw/text_table.h"
#include "muster/placement/model_memory.h"

namespace muster {
namespace {

// Returns the memory of a GPU, or of a MIG instance; 0 if it is not known.
uint64_t memory_of_gpu(const Inventory& inventory, const GpuUuid& uuid) {
  for (const Host& host : inventory.hosts) {
    for (const Gpu& gpu : host.gpus) {
      if (gpu.uuid == uuid)
        return gpu.memory_total_bytes;
      for (const MigInstance& instance : gpu.mig) {
        if (instance.uuid == uuid)
          return instance.memory_total_bytes;
      }
    }
  }
  return 0;
}

// Returns the memory of the rank with the smallest share of a GPU; nothing if no rank has a GPU.
std::optional<uint64_t> smallest_memory(const Inventory& inventory, const Plan& plan) {
  std::map<std::string, uint64_t> sharers;
  for (const RankPlan& rank : plan.ranks)
    ++sharers[rank.device.uuid.value];
  std::optional<uint64_t> least;
  for (const RankPlan& rank : plan.ranks) {
    const uint64_t whole = memory_of_gpu(inventory, rank.device.uuid);
    if (!rank.device.is_gpu() || whole == 0)
      continue;
    const uint64_t share = whole / sharers[rank.device.uuid.value];
    least = least ? std::min(*least, share) : share;
  }
  return least;
}

// A way of dividing the model.
struct WayMemory {
  ModelDivision division;
  std::string obstacle;  // why the model cannot be divided so; empty: it can
  RankBytes bytes;
  int64_t most_layers = 0;
};

using WayMemories = std::vector<WayMemory>;

// A way that the model cannot be divided by is kept, with its reason.
WayMemories ways_of(const ModelSizes& model, const Plan& plan, int64_t device_bytes) {
  WayMemories ways;
  const int num_ranks = static_cast<int>(plan.ranks.size());
  for (const ModelDivision& division : model_divisions(num_ranks, plan.mesh)) {
    WayMemory way{.division = division, .obstacle = obstacle(model, division), .bytes = {}};
    if (way.obstacle.empty())
      way.bytes = rank_bytes(model, division);
    way.most_layers = most_layers(model, division, device_bytes);
    ways.push_back(way);
  }
  return ways;
}

// The table says of each way what fits, and how many layers would.
std::string model_table(const ModelSizes& model, const WayMemories& ways, int64_t device_bytes) {
  auto text = cat("\nmodel: ",
                  num_parameters(model),
                  " parameters, ",
                  model.bf16 ? "bf16" : "fp32",
                  ", AdamW, ",
                  model.batch,
                  " × ",
                  model.context,
                  " tokens a step of each data-parallel rank; a device has ",
                  format_bytes(device_bytes),
                  "\n");
  TableRows rows;
  for (const WayMemory& way : ways) {
    if (!way.obstacle.empty()) {
      rows.push_back(
          {way.division.name, "-", "-", "-", "-", "-", "-", way.obstacle, cat(way.most_layers)});
      continue;
    }
    const RankBytes& b = way.bytes;
    const uint64_t total = b.total();
    const uint64_t whole_device = device_bytes;
    rows.push_back({way.division.name,
                    format_bytes(b.parameters),
                    format_bytes(b.gradients),
                    format_bytes(b.optimizer),
                    format_bytes(b.activations),
                    format_bytes(b.other),
                    format_compared_bytes({total, whole_device})[0],
                    b.total() <= device_bytes ? "yes" : "no",
                    cat(way.most_layers)});
  }
  return text + format_table({{"way"},
                              {"parameters", true},
                              {"gradients", true},
                              {"optimizer", true},
                              {"activations", true},
                              {"other", true},
                              {"a rank", true},
                              {"fits"},
                              {"most layers", true}},
                             rows);
}

// It becomes a part of the plan's JSON.
std::string model_json(const ModelSizes& model, const WayMemories& ways, int64_t device_bytes) {
  using Json = nlohmann::ordered_json;
  Json rows = Json::array();
  for (const WayMemory& way : ways) {
    const ModelDivision& d = way.division;
    Json row = {{"way", d.name},
                {"data_parallel", d.data},
                {"pipeline_parallel", d.pipeline},
                {"tensor_parallel", d.tensor}};
    if (way.obstacle.empty()) {
      row.update({{"parameter_bytes", way.bytes.parameters},
                  {"gradient_bytes", way.bytes.gradients},
                  {"optimizer_bytes", way.bytes.optimizer},
                  {"activation_bytes", way.bytes.activations},
                  {"other_bytes", way.bytes.other},
                  {"apart_bytes", way.bytes.apart},
                  {"rank_bytes", way.bytes.total()}});
    } else {
      row["obstacle"] = way.obstacle;
    }
    row["fits"] = way.obstacle.empty() && way.bytes.total() <= device_bytes;
    row["most_layers"] = way.most_layers;
    rows.push_back(row);
  }
  return Json{{"parameters", num_parameters(model)}, {"device_bytes", device_bytes}, {"ways", rows}}
      .dump();
}

// Reads --device-memory.
int64_t device_memory(const std::string& text) {
  // No device has a petabyte.
  constexpr uint64_t kMost = 1'000'000'000'000'000;
  const auto refuse = [&] {
    throw invalid_argument(
        "--device-memory: expected a size from 1 byte to 1 PB such as 80GiB, got '",
        printable(text),
        "'; write 80GiB");
  };
  uint64_t bytes = 0;
  try {
    bytes = parse_bytes(text);
  } catch (const Error&) {
    refuse();
  }
  if (bytes < 1 || bytes > kMost)
    refuse();
  return static_cast<int64_t>(bytes);
}

}  // namespace

// The flags have a title of their own in --help.
void add_model_options(CLI::App* command, PlanModelFlags& flags) {
  text_flag(
      command,
      "--model",
      flags.model,
      "SIZES",
      "a GPT's sizes such as layers=24,width=2048,…",
      "Show how much memory each rank needs to train this GPT, with DDP, ZeRO, fully sharded, "
      "tensor and "
      "pipeline parallelism: layers=24,width=2048,heads=16,context=1024,vocabulary=50304,batch=8"
      "[,precision=bf16][,tied=1][,micro_batches=8]");
  text_flag(command,
            "--device-memory",
            flags.device_memory,
            "SIZE",
            "a size such as 80GiB",
            "With --model: memory of one device, such as 80GiB [the plan's smallest GPU]");
  for (const char* flag : {"--model", "--device-memory"})
    command->get_option(flag)->group("A model");
}

// The flags are read now, so that a wrong one is an error before anything is planned.
std::function<std::string(const Inventory&, const Plan&)> to_about_model(
    const PlanModelFlags& flags, bool json) {
  if (flags.model.empty()) {
    if (flags.device_memory.empty())
      return {};
    throw invalid_argument("--device-memory: expected --model beside it, got '",
                           printable(flags.device_memory),
                           "' alone; add --model layers=24,width=2048,…, or leave it out");
  }
  const ModelSizes model = parse_model(flags.model);
  const int64_t given = flags.device_memory.empty() ? 0 : device_memory(flags.device_memory);
  return [model, given, json](const Inventory& inventory, const Plan& plan) {
    // The plan's own GPUs count unless a size was given.
    const auto found = smallest_memory(inventory, plan);
    if (given == 0 && !found)
      throw invalid_argument(
          "--model: expected a GPU in the plan whose memory is known, got none; add "
          "--device-memory 80GiB");
    const int64_t bytes = given > 0 ? given : static_cast<int64_t>(*found);
    const auto ways = ways_of(model, plan, bytes);
    return json ? model_json(model, ways, bytes) : model_table(model, ways, bytes);
  };
}

}  // namespace muster

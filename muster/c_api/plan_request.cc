// Each member is read by a function of its own, which names it in its errors. The launcher checks
// the request as a whole, as it checks its own flags.
#include "muster/c_api/plan_request.h"

#include <cstdint>
#include <string>

#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/c_api/json_argument.h"
#include "muster/device/strict_json.h"

namespace muster {

namespace {

constexpr auto kWhat = "plan";

// Members that JsonObject has no reader for: it is told to pass over them.
const nlohmann::json* take(const nlohmann::json& json, JsonObject& object, const char* key) {
  object.ignore(key);
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

// A number, "auto", "cpu" or "gpu".
void read_number_of_ranks(const nlohmann::json& n, JsonObject& object, Request& request) {
  if (n.is_number_integer() && n >= 1 && n <= 1'000'000) {
    request.nproc_per_node = n.get<int>();
    return;
  }
  if (n == "cpu")
    request.cpu_only = true;
  else if (n == "gpu")
    request.gpu_only = true;
  else if (n != "auto")
    object.fail("n", "a number from 1, 'auto', 'cpu' or 'gpu'", n.dump());
}

void read_map(const nlohmann::json& map, JsonObject& object, Request& request) {
  if (!map.is_array())
    object.fail("map", "an array of GPU indices", map.type_name());
  for (const nlohmann::json& index : map) {
    if (!index.is_number_integer() || index < 0 || index > 1'000'000)
      object.fail("map", "GPU indices from 0", index.dump());
    request.map.push_back(index.get<int>());
  }
}

void read_scores(const nlohmann::json& scores, JsonObject& object, Request& request) {
  if (!scores.is_object())
    object.fail("scores", "an object of numbers as in {\"0\": 100, \"1\": 90}", scores.type_name());
  for (const auto& [gpu, score] : scores.items()) {
    if (!score.is_number())
      object.fail("scores", "numbers", cat(score.type_name(), " for ", printable(gpu)));
    request.scores[gpu] = score.get<double>();
  }
}

void read_memory(const nlohmann::json& sizes, JsonObject& object, Request& request) {
  if (!sizes.is_array())
    object.fail("rank_memory", "an array of sizes", sizes.type_name());
  for (const nlohmann::json& size : sizes) {
    if (!size.is_number_unsigned() && !size.is_string())
      object.fail("rank_memory", "bytes as in 1024 or \"20GiB\"", size.dump());
    request.rank_memory_bytes.push_back(size.is_string()
                                            ? parse_bytes(size.get<std::string>(), "rank_memory")
                                            : size.get<uint64_t>());
  }
}

}  // namespace

LaunchOptions plan_request(const char* text) {
  const nlohmann::json json = json_argument(text, kWhat);
  JsonObject object(json, kWhat, "request");
  LaunchOptions options;
  options.dry_run = true;
  Request& request = options.request;
  if (const auto* const n = take(json, object, "n"))
    read_number_of_ranks(*n, object, request);
  if (const auto gpus = object.text_or("gpus", ""); !gpus.empty())
    request.gpus = gpus;
  request.gpus_per_rank = object.small_integer_or("gpus_per_rank", 1, 1);
  request.policy = object.text_or("policy", "");
  if (const auto* const map = take(json, object, "map"))
    read_map(*map, object, request);
  if (const auto* const scores = take(json, object, "scores"))
    read_scores(*scores, object, request);
  if (const auto* const sizes = take(json, object, "rank_memory"))
    read_memory(*sizes, object, request);
  if (const auto mesh = object.text_or("mesh", ""); !mesh.empty())
    request.mesh = parse_axes(mesh);
  request.global_batch = static_cast<int64_t>(object.size_or("global_batch", 0));
  request.numa_binding = parse_numa_binding(object.text_or("numa_binding", "none"));
  request.surplus = parse_surplus(object.text_or("surplus", "error"));
  request.visibility = parse_visibility(object.text_or("visibility", "job"));
  options.inventory = object.text_or("inventory", "");
  options.cpu_slots = object.small_integer_or("cpu_slots", 0, 0);
  object.finish();
  return options;
}

}  // namespace muster

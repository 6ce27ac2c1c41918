// Rows travel between hosts as files in the job's folder, to which other programs may write: what
// is read of them is checked, and text that could disturb a terminal is changed.
#include "muster/report/top_rows.h"

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "muster/base/error.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_member.h"
#include "muster/base/json_words.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/trace/call_text.h"

namespace muster {

namespace {

using Json = nlohmann::ordered_json;

void take(const Json& row, const char* name, std::string& text) {
  text = readable(row.at(name).get<std::string>());
}

void take(const Json& row, const char* name, int& number) {
  number = row.at(name).get<int>();
}

// JSON has no numbers that are not finite: "nan", "inf" and "-inf" are texts.
void take_loss(const Json& row, std::optional<double>& loss) {
  const Json& value = row.at("loss");
  if (value.is_number())
    loss = value.get<double>();
  if (value.is_string())
    loss = std::strtod(value.get<std::string>().c_str(), nullptr);
}

template <class Number>
void take(const Json& row, const char* name, std::optional<Number>& number) {
  if (const Json& value = row.at(name); !value.is_null())
    number = value.get<Number>();
}

// Throws: nlohmann's exception for a row that lacks a member, or has one of another type.
TopRank rank_of(const Json& row) {
  TopRank rank;
  take(row, "rank", rank.rank);
  take(row, "host", rank.host);
  take(row, "device", rank.device);
  take(row, "state", rank.state);
  take(row, "gpu_percent", rank.gpu_percent);
  take(row, "gpu_used_bytes", rank.gpu_used_bytes);
  take(row, "gpu_total_bytes", rank.gpu_total_bytes);
  take(row, "cpu_percent", rank.cpu_percent);
  take(row, "memory_bytes", rank.memory_bytes);
  take(row, "step", rank.step);
  take(row, "seconds_per_step", rank.seconds_per_step);
  take(row, "samples_per_second", rank.samples_per_second);
  take_loss(row, rank.loss);
  take(row, "doing", rank.doing);
  take(row, "doing_seconds", rank.doing_seconds);
  take(row, "last_call", rank.last_call);
  take(row, "last_call_seconds", rank.last_call_seconds);
  return rank;
}

}  // namespace

Json top_row_json(const TopRank& rank) {
  return {{"rank", rank.rank},
          {"host", rank.host},
          {"device", rank.device},
          {"state", rank.state},
          {"pid", rank.pid > 0 ? Json(rank.pid) : Json()},
          {"gpu_percent", or_null<Json>(rank.gpu_percent)},
          {"gpu_used_bytes", or_null<Json>(rank.gpu_used_bytes)},
          {"gpu_total_bytes", or_null<Json>(rank.gpu_total_bytes)},
          {"cpu_percent", or_null<Json>(rank.cpu_percent)},
          {"memory_bytes", or_null<Json>(rank.memory_bytes)},
          {"step", or_null<Json>(rank.step)},
          {"seconds_per_step", or_null<Json>(rank.seconds_per_step)},
          {"samples_per_second", or_null<Json>(rank.samples_per_second)},
          {"loss", or_null<Json>(rank.loss)},
          {"doing", rank.doing},
          {"doing_seconds", or_null<Json>(rank.doing_seconds)},
          {"last_call", rank.last_call},
          {"last_call_seconds", or_null<Json>(rank.last_call_seconds)}};
}

std::string pack_top_rows(const std::vector<TopRank>& ranks) {
  Json rows = Json::array();
  for (const TopRank& rank : ranks) {
    rows.push_back(top_row_json(rank));
    if (rank.loss && !std::isfinite(*rank.loss))
      rows.back()["loss"] = cat(*rank.loss);
  }
  return json_text(rows);
}

// Deep nesting could use up the parser's stack.
std::vector<TopRank> unpack_top_rows(const std::string& bytes) {
  try {
    if (nests_too_deep(bytes))
      throw invalid_argument("expected rows, got deep nesting");
    return mapped(Json::parse(bytes), rank_of);
  } catch (const nlohmann::json::exception& error) {
    throw invalid_argument("expected rows of `muster top`, got: ", json_words(error.what()));
  }
}

}  // namespace muster

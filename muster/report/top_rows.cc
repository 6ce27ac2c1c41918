// Rows travel between hosts as files in the job's folder, to which other programs may write: what
// is read of them is checked, and text that could disturb a terminal is changed.
#include "muster/report/top_rows.h"

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_member.h"
#include "muster/base/json_words.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/launch/json_members.h"
#include "muster/trace/call_text.h"

namespace muster {

namespace {

using Json = nlohmann::ordered_json;

constexpr auto kMembers = [](auto& rank, const auto& visit) {
  visit("rank", rank.rank);
  visit("host", rank.host);
  visit("device", rank.device);
  visit("state", rank.state);
  visit("pid", rank.pid);
  visit("gpu_percent", rank.gpu_percent);
  visit("gpu_used_bytes", rank.gpu_used_bytes);
  visit("gpu_total_bytes", rank.gpu_total_bytes);
  visit("cpu_percent", rank.cpu_percent);
  visit("memory_bytes", rank.memory_bytes);
  visit("step", rank.step);
  visit("seconds_per_step", rank.seconds_per_step);
  visit("samples_per_second", rank.samples_per_second);
  visit("loss", rank.loss);
  visit("doing", rank.doing);
  visit("doing_seconds", rank.doing_seconds);
  visit("last_call", rank.last_call);
  visit("last_call_seconds", rank.last_call_seconds);
};

// JSON has no numbers that are not finite: "nan", "inf" and "-inf" are texts.
void read_loss(Json& loss) {
  if (loss.is_string())
    loss = std::strtod(loss.get<std::string>().c_str(), nullptr);
}

// Throws: nlohmann's exception for a row that lacks a member, or has one of another type.
TopRank rank_of(Json row) {
  row["pid"] = 0;  // another host's
  read_loss(row.at("loss"));
  TopRank rank;
  members_from_json(row, rank, kMembers);
  for (std::string* const text :
       {&rank.host, &rank.device, &rank.state, &rank.doing, &rank.last_call})
    *text = readable(*text);
  return rank;
}

}  // namespace

Json top_row_json(const TopRank& rank) {
  Json row = members_to_json(rank, kMembers);
  if (rank.pid <= 0)
    row["pid"] = nullptr;
  return row;
}

std::string pack_top_rows(const TopRanks& ranks) {
  Json rows = Json::array();
  for (const TopRank& rank : ranks) {
    rows.push_back(top_row_json(rank));
    if (rank.loss && !std::isfinite(*rank.loss))
      rows.back()["loss"] = cat(*rank.loss);
  }
  return json_text(rows);
}

// Deep nesting could use up the parser's stack.
TopRanks unpack_top_rows(const std::string& bytes) {
  try {
    if (nests_too_deep(bytes))
      throw invalid_argument("expected rows, got deep nesting");
    return mapped(Json::parse(bytes), rank_of);
  } catch (const nlohmann::json::exception& error) {
    throw invalid_argument("expected rows of `muster top`, got: ", json_words(error.what()));
  }
}

}  // namespace muster

// The rows of `muster top` as JSON, and as bytes for another host's `muster top`. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "muster/report/top.h"

namespace muster {

// As "muster.top/1" has it, but for a loss that is NaN, which dump() makes null.
nlohmann::ordered_json top_row_json(const TopRank& rank);

// JSON; a loss that is no number is a text.
std::string pack_top_rows(const std::vector<TopRank>& ranks);

// Without the pids, which are another host's; text is readable. Throws: invalid_argument.
std::vector<TopRank> unpack_top_rows(const std::string& bytes);

}  // namespace muster

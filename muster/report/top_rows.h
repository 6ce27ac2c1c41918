// The rows of `muster top` as JSON, and as bytes for another host's `muster top`. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "muster/report/top.h"

namespace muster {

// A row of "muster.top/1". A loss may be NaN, of which dump() makes null.
nlohmann::ordered_json top_row_json(const TopRank& rank);

// JSON in which a loss that is not finite is a text.
std::string pack_top_rows(const TopRanks& ranks);

// Leaves out the pids, which are another host's, and makes text readable. Throws: invalid_argument.
TopRanks unpack_top_rows(const std::string& bytes);

}  // namespace muster

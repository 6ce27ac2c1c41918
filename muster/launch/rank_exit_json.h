// A RankExit as JSON: how hosts tell each other, and failure.json people's programs, how a rank
// ended.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "muster/launch/rank_exit.h"

namespace muster {

nlohmann::ordered_json to_json(const RankExit& exit);
nlohmann::ordered_json to_json(const ErrorFacts& facts);

// Reads what a rank wrote: members of another type than they should have are left out.
ErrorFacts error_facts_from_json(const nlohmann::ordered_json& json);

// Reads what to_json made. Members that are missing have the defaults of RankExit. Throws:
// invalid_argument for one of another type.
RankExit rank_exit_from_json(const nlohmann::ordered_json& json);

}  // namespace muster

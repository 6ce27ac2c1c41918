// Every variable of a rank's environment, once: the member of RankEnv that it stands for, and what
// becomes of it where another job begins inside the rank. rank_env.cc reads and writes by this
// table; launchers, `muster tasks` and agents that start by ssh take their lists from it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "muster/base/rank_env.h"

namespace muster {

// A truth value and its texts; without `no`, the variable is then not set.
struct RankFlag {
  bool RankEnv::* value;
  const char* yes;
  const char* no;
};

// Nothing: the launcher makes the text from other things.
using RankMember = std::variant<std::monostate, int RankEnv::*, std::string RankEnv::*, RankFlag>;

struct RankVariable {
  // These are or-ed.
  enum Trait : unsigned {
    kPlace = 1,           // rank and size, which each launcher spells in its own way
    kSetIfEmpty = 2,      // other texts are not set if they are empty
    kByGeneration = 4,    // the next generation of a job in place may have another value
    kErased = 8,          // it speaks of one rank: no job inside the rank may see it
    kErasedByTasks = 16,  // launchers inside pass it on, but `muster tasks` does not
    kStaysOnHost = 32,    // it means nothing to an agent on another host, or is a secret
  };

  const char* name;
  RankMember member;
  unsigned traits;
};

std::span<const RankVariable> rank_variables();

// Whether the row of that name has `trait`. False for a variable that is none of a rank's.
bool has_trait(std::string_view name, RankVariable::Trait trait);

// Takes away what the rank around a launcher was told of itself, before the launcher tells its own
// ranks.
void erase_outer_rank(Environment& variables);

// For `muster tasks`: its tasks see nothing of a task or an inventory around them either.
void erase_outer_task(Environment& variables);

}  // namespace muster

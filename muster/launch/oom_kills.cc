// The kernel counts its kills for a control group and names no process. So SIGKILLs that nobody
// here sent are explained by it only if it has killed as many processes as there are such ranks.
#include "muster/launch/oom_kills.h"

#include <signal.h>

#include <algorithm>

#include "muster/base/memory_group.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"

namespace muster {

// A cause that is given is the same for all of these ranks: which kill was whose is not known.
void OomKills::explain(RankExits& exits) const {
  const auto killed = [](const RankExit& exit) {
    return exit.signal == SIGKILL && exit.sent_signal == 0;
  };
  const auto unexplained = std::ranges::count_if(exits, killed);
  if (!before_ || unexplained == 0)
    return;
  const int64_t kills = count_().value_or(0) - *before_;
  if (kills < unexplained)
    return;
  auto cause = cat("killed by SIGKILL: out of memory (the kernel ended ",
                   kills,
                   word_for(kills, " process", " processes"),
                   " of this control group meanwhile");
  if (const auto limit = group_memory_limit())
    cause += cat(", whose limit is ", format_bytes(*limit));
  cause += ")";
  for (RankExit& exit : exits) {
    if (killed(exit))
      exit.cause = cause;
  }
}

}  // namespace muster

#include "muster/launch/oom_kills.h"

#include <signal.h>

#include <algorithm>

#include "muster/base/memory_group.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster {

void OomKills::explain(std::vector<WorkerExit>& exits) const {
  const auto killed = [](const WorkerExit& exit) {
    return exit.signal == SIGKILL && exit.sent_signal == 0;
  };
  const auto unexplained = std::count_if(exits.begin(), exits.end(), killed);
  if (!before_ || unexplained == 0)
    return;
  const int64_t kills = count_().value_or(0) - *before_;
  if (kills < unexplained)
    return;
  const auto limit = group_memory_limit();
  const std::string cause =
      cat("killed by SIGKILL: out of memory (the kernel ended ",
          kills,
          kills == 1 ? " process" : " processes",
          " of this control group meanwhile",
          limit ? cat(", whose limit is ", format_bytes(static_cast<uint64_t>(*limit))) : "",
          ")");
  for (WorkerExit& exit : exits) {
    if (killed(exit))
      exit.cause = cause;
  }
}

}  // namespace muster

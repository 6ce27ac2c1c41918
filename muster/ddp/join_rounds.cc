// A rank's plan is a row of flags; all ranks gather all rows. Whatever is wrong is seen by all.
#include "muster/ddp/join_rounds.h"

#include <string>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/strings.h"
#include "muster/comm/rows.h"

namespace muster {

namespace {

[[noreturn]] void refuse_join(const char* rule,
                              const std::string& got,
                              int rank,
                              const char* next) {
  throw failed_precondition("DistributedDataParallel::join: expected ",
                            rule,
                            ", got ",
                            got,
                            " (rank ",
                            rank,
                            "); ",
                            next);
}

}  // namespace

// Each thread has its own: ranks may be threads of one process.
bool& RanksShadow::active_here() {
  static thread_local bool active = false;
  return active;
}

// All active ranks must do the same. The source is the last of them, or when none is left the last
// that had inputs.
JoinRounds::Answer JoinRounds::meet(const Plan& mine) {
  const auto plans = all_gather_rows(group_, mine);
  Answer answer;
  int last = 0;
  for (const int rank : indices_below(group_.size())) {
    const Plan& plan = plans[rank];
    if (!plan.active) {
      if (!plan.shadowed)
        last = rank;
      continue;
    }
    if (plan.changed) {
      refuse_join("the same parameters throughout join()",
                  cat("others on rank ", group_.job_rank(rank)),
                  group_.job_rank(),
                  "freeze, unfreeze and register before it");
    }
    const bool same = plan.records == answer.plan.records && plan.reduces == answer.plan.reduces &&
                      plan.broadcasts == answer.plan.broadcasts;
    if (answer.active > 0 && !same) {
      refuse_join("forwards of one kind on all ranks that have inputs",
                  cat("another kind on rank ",
                      group_.job_rank(rank),
                      " than on rank ",
                      group_.job_rank(answer.source)),
                  group_.job_rank(),
                  "use no_sync() and NoGradGuard alike on all ranks, and evaluate on module()");
    }
    answer.plan = plan;
    answer.source = rank;
    ++answer.active;
  }
  if (answer.active == 0)
    answer.source = last;
  return answer;
}

}  // namespace muster

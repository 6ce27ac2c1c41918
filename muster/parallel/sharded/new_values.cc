// Where nobody has new values, calls are what they would be without this. A rank that alone has
// some makes a call that no other rank knows, and all ranks see that.
#include "muster/parallel/sharded/new_values.h"

#include "muster/base/error.h"
#include "muster/comm/call/number.h"

namespace muster {

void NewValues::add(int64_t hash) {
  hash_ = (hash_ ^ static_cast<uint64_t>(hash)) * 0x9E3779B97F4A7C15U | 1U;
}

void NewValues::tell(int64_t number, const std::function<void()>& calls) {
  const bool is_told = budget_.may_compare() && hash_ != 0;
  const CallNumber told(is_told ? static_cast<int64_t>(hash_ >> 1U) : number);
  if (is_told) {
    budget_.take();
    hash_ = 0;
  }
  try {
    calls();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument)
      throw;
    throw Error(error.code(),
                subject_,
                ": expected every rank in the same call, and new values of parameters "
                "(torch::load, writes in place) to be the same on every rank and host, got ",
                is_told ? "other new values or none" : "another call or new values",
                " on some of them (rank ",
                group_.job_rank(),
                "); make the same calls on all ranks, and load or write the same: ",
                error.message());
  }
}

}  // namespace muster

// When a rank of a pipeline fails, its neighbours fail too: their messages do not come. The first
// rank to fail writes its cause into the store, and the others add it to their own errors. An error
// of this rank itself is thrown as it is.
#include "muster/parallel/pipeline/failure.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <exception>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/comm/call/failure.h"

namespace muster {

// All ranks make their pipelines in one order, so the count gives a pipeline one key on all of
// them.
PipelineFailure::PipelineFailure(ProcessGroup group) : group_(std::move(group)) {
  const int64_t number = group_.store()->add(cat("pipelines/", group_.rank()), 1);
  key_ = cat("pipeline_failure/", number);
}

// Returns the cause that the first rank has written; that is this rank's if nobody was before it.
std::string PipelineFailure::first_cause(const std::string& ours) {
  try {
    const auto to_bytes = [](const std::string& text) {
      return std::vector<uint8_t>(text.begin(), text.end());
    };
    const std::vector<uint8_t> first = group_.store()->compareSet(key_, {}, to_bytes(ours));
    return {first.begin(), first.end()};
  } catch (const std::exception&) {
    return ours;  // whoever serves the store has gone
  }
}

// A catch block calls it, and it always throws. The cause is written before the error goes on, so
// that neighbours find it.
void PipelineFailure::rethrow_explained() {
  const std::string here = cat("pipeline: step ",
                               step_,
                               ", ",
                               action_.letter(),
                               action_.micro_batch,
                               " of stage ",
                               action_.stage,
                               " on rank ",
                               group_.job_rank());
  try {
    throw;
  } catch (const Error& error) {
    const bool of_a_peer = is_one_of(
        error.code(), ErrorCode::peer_failed, ErrorCode::timeout, ErrorCode::backend_failed);
    const std::string ours = cat(here, ": ", error.what());
    const std::string first = first_cause(ours);
    if (!of_a_peer)
      throw;
    if (first == ours)
      throw Error(error.code(), ours);
    throw Error(ErrorCode::peer_failed, here, ": a rank failed; first: ", first);
  } catch (const std::exception& error) {
    // An exception that is not muster's is a cause of this rank's own.
    first_cause(cat(here, ": ", first_line(error)));
    throw;
  }
}

}  // namespace muster

// Local SGD: ranks train alone, and average their parameters every few steps. With a group inside
// of a host, its ranks average in every step, and the hosts among each other every few. The first
// `start` steps are averaged everywhere, since models move fastest then.
#include "muster/parallel/averaging/local_sgd.h"

#include <string>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/parallel/agree.h"
#include "muster/parallel/averaging/average.h"

namespace muster {

namespace {

// Returns what is wrong with the options, or nothing.
std::string wrong_local_sgd(const LocalSGDOptions& options, int rank) {
  if (options.every < 1)
    return cat("LocalSGD: expected an average every 1 step or more, got every ",
               options.every,
               " (rank ",
               rank,
               "); 1 averages every step");
  if (options.start < 0)
    return cat("LocalSGD: expected a start of 0 steps or more, got ",
               options.start,
               " (rank ",
               rank,
               "); 0 begins with local steps");
  return "";
}

// The ranks of a host compare their terms first. What they refuse is returned instead of thrown, so
// that the ranks of other hosts hear of it too, in the group between hosts.
std::string refusal_inside(ProcessGroup& inside, const std::string& wrong, const Terms& terms) {
  try {
    require_agreement(inside, "LocalSGD", wrong, terms);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument)
      throw;
    return error.message();
  }
  return wrong;
}

}  // namespace

// All ranks construct it together. Whole numbers among parameters and buffers stay each rank's own.
LocalSGD::LocalSGD(const GivenParameters& parameters, ProcessGroup group, LocalSGDOptions options)
    : group_(std::move(group)),
      options_(std::move(options)),
      model_(parameters.model),
      averaged_(averaged_ones(parameters.tensors)) {
  Terms terms{{"every", cat(options_.every)},
              {"start", cat(options_.start)},
              {"ranks inside", cat(options_.inside ? options_.inside->size() : 1)}};
  append_all(terms, terms_of("parameter", parameters.tensors));
  append_all(terms, terms_of("buffer", options_.buffers));
  std::string wrong = wrong_local_sgd(options_, group_.job_rank());
  if (options_.inside)
    wrong = refusal_inside(*options_.inside, wrong, terms);
  require_agreement(group_, "LocalSGD", wrong, terms);
  append_all(averaged_, averaged_ones(options_.buffers));
}

void LocalSGD::average_in(ProcessGroup& group) {
  require_present("LocalSGD", model_, averaged_);
  average_over(group, averaged_);
}

// It returns whether this call averaged over `group_`, and not only inside of a host.
bool LocalSGD::step() {
  ++steps_;
  // The ranks of a host go first, so that the average over hosts is one of all ranks.
  if (options_.inside)
    average_in(*options_.inside);
  // The first `start` steps are all due, and the count of `every` begins after them.
  const bool due = steps_ <= options_.start || (steps_ - options_.start) % options_.every == 0;
  if (due)
    average_in(group_);
  return due;
}

// All ranks call it together. The inner average goes first, as in step().
void LocalSGD::average() {
  if (options_.inside)
    average_in(*options_.inside);
  average_in(group_);
}

}  // namespace muster

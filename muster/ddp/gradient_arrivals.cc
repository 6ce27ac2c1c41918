// A flag for each parameter says whether its gradient has come. With a static graph the first
// backward's flags are kept, and later ones are compared with them.
#include "muster/ddp/gradient_arrivals.h"

#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"

namespace muster {

GradientArrivals::GradientArrivals(Strings names,
                                   Strings assigned,
                                   const DdpOptions& options,
                                   int rank)
    : names_(std::move(names)),
      assigned_(std::move(assigned)),
      all_needed_(!options.find_unused_parameters && !options.static_graph),
      static_graph_(options.static_graph),
      finds_unused_(options.find_unused_parameters && !options.static_graph),
      rank_(rank),
      arrived_(names_.size(), false) {}

// A static graph may bring a gradient several times: layers that are checkpointed more than once
// do.
void GradientArrivals::check(size_t index) const {
  const auto refuse = [&](const char* rule, const char* got, const char* next) {
    throw failed_precondition("DistributedDataParallel: expected ",
                              rule,
                              ", got ",
                              got,
                              " '",
                              names_[index],
                              "' (rank ",
                              rank_,
                              "); ",
                              next);
  };
  if (!static_graph_ && arrived_[index]) {
    refuse("each parameter's gradient once in a backward",
           "a second one for",
           "set static_graph for layers that are checkpointed more than once");
  }
  if (!learnt_.empty() && !learnt_[index]) {
    refuse("the first backward's graph with static_graph",
           "a gradient that was not in it, of",
           "leave static_graph off for a graph that changes");
  }
}

void GradientArrivals::note(size_t index) {
  arrived_[index] = true;
  any_ = true;
}

// A static graph needs only the parameters of its first backward.
void GradientArrivals::refuse_missing(const char* rule, const std::string& next) const {
  Strings missing;
  size_t needed = 0;
  for (const size_t i : indices_of(arrived_)) {
    if (!learnt_.empty() && !learnt_[i])
      continue;
    ++needed;
    if (!arrived_[i])
      missing.push_back(names_[i]);
  }
  if (missing.empty())
    return;
  throw failed_precondition("DistributedDataParallel: expected ",
                            rule,
                            ", got none for ",
                            finds_unused_ ? "one or more of " : "",
                            join(missing, ", "),
                            " (",
                            missing.size(),
                            " of ",
                            needed,
                            ", rank ",
                            rank_,
                            "), so nothing was reduced; ",
                            next);
}

// A layer whose member was assigned never uses what it has registered.
std::string GradientArrivals::way_out() const {
  const std::string usual = "set find_unused_parameters, or freeze them";
  for (const size_t i : indices_of(arrived_))
    if (!arrived_[i] && contains(assigned_, names_[i]))
      return cat(usual,
                 ": the layer of '",
                 names_[i],
                 "' computes with another tensor, which was assigned to its member, as by "
                 "head->weight = embed->weight, and never with the registered one");
  return usual;
}

// The Reducer itself knows what is missing when it looks for unused parameters, or the graph is
// static.
void GradientArrivals::check_all() const {
  if (all_needed_)
    refuse_missing("a gradient for every parameter", way_out());
}

void GradientArrivals::check_reached() const {
  refuse_missing("a gradient for every parameter that forward's outputs lead to",
                 "compute the loss from forward's outputs, and call backward once");
}

void GradientArrivals::clear() {
  arrived_.assign(arrived_.size(), false);
  any_ = false;
}

}  // namespace muster

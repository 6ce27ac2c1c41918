// Records which parameters' gradients a backward has produced, and reports what is wrong if they
// are not the expected ones. It names what c10d::Reducer would reject by index, or a step later.
#pragma once

#include <string>
#include <vector>

#include "muster/base/strings.h"
#include "muster/ddp/options.h"

namespace muster {

class GradientArrivals {
 public:
  GradientArrivals() = default;
  // Layers compute with other tensors than those that are registered as `assigned`.
  GradientArrivals(Strings names, Strings assigned, const DdpOptions& options, int rank);

  // Checks a gradient of a reduced backward. Throws: failed_precondition for a second gradient of
  // one parameter, and for one that the first backward of a static graph did not produce.
  void check(size_t index) const;
  void note(size_t index);
  bool any() const { return any_; }
  // Takes what has arrived so far as the static graph.
  void learn() { learnt_ = arrived_; }
  // Call it at the end. Throws: failed_precondition naming the parameters without a gradient, if
  // each needs one.
  void check_all() const;
  // Checks a backward that the Reducer could not finish. Throws: failed_precondition naming the
  // parameters that got no gradient and may need one.
  void check_reached() const;

  void clear();
  const std::string& name(size_t index) const { return names_[index]; }

 private:
  void refuse_missing(const char* rule, const std::string& next) const;
  std::string way_out() const;

  Strings names_;
  Strings assigned_;
  bool all_needed_ = true;
  bool static_graph_ = false;
  bool finds_unused_ = false;
  int rank_ = 0;
  std::vector<bool> arrived_;
  std::vector<bool> learnt_;  // empty until learnt
  bool any_ = false;
};

}  // namespace muster

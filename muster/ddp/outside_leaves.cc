// Autograd keeps the nodes of the graph that runs, and a leaf's node is its accumulator. An input
// that needs a gradient is a leaf too: it is another tensor in each step, or has other values on
// each rank from the beginning, so that it is never taken for a trained one.
#include "muster/ddp/outside_leaves.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include "muster/base/contains.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr int common_backwards = 2;
constexpr int judged_backwards = 1000;  // leaves that are equal until then are averaged by hand

Tensors leaves_of_running_graph() {
  const auto* const nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  Tensors leaves;
  if (nodes == nullptr)
    return leaves;
  for (torch::autograd::Node* node : *nodes)
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node);
        leaf != nullptr && leaf->variable.defined())
      leaves.push_back(leaf->variable);
  return leaves;
}

bool any_differs(const std::vector<LeavesSample>& samples, ValueSample LeavesSample::* moment) {
  return any_of(samples, [&](const LeavesSample& sample) {
    return (samples.front().*moment).differs_from(sample.*moment);
  });
}

bool all_watch_as_many(const std::vector<LeavesSample>& samples) {
  return all_of(samples, [&](const LeavesSample& sample) {
    return sample.leaves > 0 && sample.leaves == samples.front().leaves;
  });
}

// Adds a sample of another tensor. The sum is not taken if a part of it is not.
void add(ValueSample& sum, const ValueSample& part) {
  if (!sum.is_taken())
    return;
  sum.sum += part.sum;
  sum.size = part.is_taken() ? std::hypot(sum.size, part.size) : ValueSample{}.size;
  sum.tolerance = std::max(sum.tolerance, part.tolerance);
}

}  // namespace

void OutsideLeaves::look(const IsKnown& is_known) {
  if (is_looking())
    look(leaves_of_running_graph(), is_known);
}

void OutsideLeaves::look(const Tensors& leaves, const IsKnown& is_known) {
  if (!is_looking())
    return;
  for (const Tensor& leaf : leaves)
    if (!is_known(leaf))
      note(leaf);
  if (++looks_ < looked_backwards)
    return;
  std::erase_if(leaves_, [](const Leaf& leaf) { return leaf.seen < common_backwards; });
  is_decided_ = leaves_.empty();
}

void OutsideLeaves::note(const Tensor& tensor) {
  const auto same = [&](const Leaf& leaf) {
    const auto held = leaf.tensor.lock();
    return held && held.get() == tensor.unsafeGetTensorImpl();
  };
  if (const auto leaf = std::ranges::find_if(leaves_, same); leaf != leaves_.end())
    ++leaf->seen;
  else
    leaves_.push_back({.tensor = WeakTensor(tensor.getIntrusivePtr()), .first = sample_of(tensor)});
}

// A leaf that is gone was no tensor that is trained.
std::vector<OutsideLeaves::Watched> OutsideLeaves::watched() const {
  std::vector<Watched> watched;
  for (const Leaf& leaf : leaves_) {
    if (leaf.seen < common_backwards)
      continue;
    if (auto held = leaf.tensor.lock())
      watched.push_back({.tensor = Tensor(std::move(held)), .first = leaf.first});
  }
  return watched;
}

LeavesSample OutsideLeaves::sample() const {
  if (is_decided_)
    return {};
  LeavesSample sample{.first = {.size = 0}, .present = {.size = 0}};
  for (const Watched& leaf : watched()) {
    ++sample.leaves;
    add(sample.first, leaf.first);
    add(sample.present, sample_of(leaf.tensor));
  }
  return sample;
}

bool OutsideLeaves::judge(const std::vector<LeavesSample>& samples) {
  if (is_decided_ || !all_watch_as_many(samples))
    return false;
  const bool have_come_apart =
      !any_differs(samples, &LeavesSample::first) && any_differs(samples, &LeavesSample::present);
  is_decided_ = have_come_apart || ++judged_ == judged_backwards;
  return have_come_apart;
}

std::string OutsideLeaves::description() const {
  const auto leaves = watched();
  if (leaves.empty())
    return "none";
  const std::string shape = c10::str(leaves.front().tensor.sizes());
  return leaves.size() == 1 ? cat("a tensor of shape ", shape)
                            : cat(leaves.size(), " tensors, one of shape ", shape);
}

std::string outside_leaves_warning(const OutsideLeaves& leaves, int64_t rank) {
  return cat(
      "expected every trained tensor of a backward to be a parameter of a wrapped model, got ",
      leaves.description(),
      " outside of all, which now differs between ranks, since nothing averages its gradient "
      "(rank ",
      rank,
      "); register it in the model that is wrapped, or average its gradient with group.all_reduce "
      "before the step");
}

}  // namespace muster

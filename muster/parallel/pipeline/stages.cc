// Measures the layers of a Sequential, and cuts it into stages. Layers are timed alone, forward and
// backward, each on the output of the one before; the fastest of several runs counts, since
// anything else that runs only makes it slower. The cut that is found is the best one, not a guess.
#include "muster/parallel/pipeline/stages.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/base/units.h"
#include "muster/comm/call/stream_order.h"
#include "muster/ddp/gradient_reducer.h"
#include "muster/parallel/pipeline/cut_stage.h"
#include "muster/parallel/tensor_bytes.h"

namespace muster {

namespace {

[[noreturn]] void refuse_cut(const std::string& expected_got_next) {
  throw invalid_argument("stages: expected ", expected_got_next);
}

int64_t parameter_bytes_of(const Module& module) {
  return sum_of<int64_t>(module.parameters(), bytes_of_tensor);
}

// The error names the child, which LibTorch's own may not.
Tensor forward_of(torch::nn::AnyModule& child, const std::string& name, const Tensor& x) {
  try {
    return child.forward<Tensor>(x);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    refuse_cut(cat("children that take a tensor and give one, got an error from '",
                   name,
                   "': ",
                   text.substr(0, text.find('\n')),
                   "; wrap it in a module that does"));
  }
}

// A measurement leaves nothing behind: gradients and buffers are put back.
class StateBefore : NoCopy {
 public:
  explicit StateBefore(const Module& module)
      : parameters_(module.parameters()), buffers_(module.buffers()) {
    gradients_ = mapped(parameters_, [&](Tensor& parameter) {
      return std::exchange(parameter.mutable_grad(), {});
    });
    values_ = mapped(buffers_, [&](const Tensor& buffer) { return buffer.clone(); });
  }
  ~StateBefore() {
    const NoGradGuard no_grad;
    for (const size_t i : indices_of(parameters_))
      parameters_[i].mutable_grad() = gradients_[i];
    for (const size_t i : indices_of(buffers_))
      buffers_[i].copy_(values_[i]);
  }

 private:
  Tensors parameters_, gradients_, buffers_, values_;
};

// `x` becomes the layer's output, which is the input of the next one.
LayerCost cost_of(torch::nn::AnyModule& child, const std::string& name, Tensor& x, int repeats) {
  const StateBefore before(*child.ptr());
  LayerCost cost{.name = name,
                 .seconds = std::numeric_limits<double>::infinity(),
                 .parameter_bytes = parameter_bytes_of(*child.ptr())};
  Tensor output;
  for (int i = 0; i < std::max(repeats, 1); ++i) {
    const Tensor input = x.detach();
    if (input.is_floating_point())
      input.set_requires_grad(true);
    const Tensor written = input.clone();  // a layer may write into what it gets
    wait_for_device(x.device());           // it works on after its calls have returned
    const auto start = Clock::now();
    output = forward_of(child, name, written);
    if (output.requires_grad())
      torch::autograd::backward({output}, {at::ones_like(output)});
    wait_for_device(x.device());
    cost.seconds = std::min(cost.seconds, seconds_since(start));
  }
  x = output.detach();
  cost.activation_bytes = bytes_of_tensor(x);
  return cost;
}

// The cost of a stage: time first, then bytes. Pairs compare in that order.
using StageCost = std::pair<double, int64_t>;

StageCost sum_of(const std::vector<LayerCost>& costs, size_t begin, size_t end) {
  StageCost sum{0, 0};
  for (size_t i = begin; i < end; ++i) {
    sum.first += costs[i].seconds;
    sum.second += costs[i].parameter_bytes;
  }
  return sum;
}

// Time and bytes are compared separately, so they may come from different stages.
StageCost larger_of_both(const StageCost& a, const StageCost& b) {
  return {std::max(a.first, b.first), std::max(a.second, b.second)};
}

constexpr StageCost kNever{std::numeric_limits<double>::infinity(), 0};

// Some of the layers, cut so that the dearest of their stages costs the least.
struct PartialCut {
  StageCost dearest = kNever;
  size_t begin_of_last = 0;
};

// Takes a last stage of the layers from `begin` to `end` behind stages whose dearest costs
// `before`, if that is better than `best`.
void try_last_stage(const std::vector<LayerCost>& costs,
                    size_t begin,
                    size_t end,
                    const StageCost& before,
                    int64_t most_bytes,
                    PartialCut& best) {
  const StageCost last = sum_of(costs, begin, end);
  const StageCost dearest = larger_of_both(before, last);
  const bool fits = most_bytes <= 0 || last.second <= most_bytes;
  if (fits && dearest < best.dearest)
    best = {.dearest = dearest, .begin_of_last = begin};
}

// Throws unless the beginnings rise from 0 and are all layers.
void check_cut(const StageCut& cut, size_t layers) {
  const bool rises =
      std::ranges::adjacent_find(cut.begins, std::greater_equal<>()) == cut.begins.end();
  const bool begins_at_0 = !cut.begins.empty() && cut.begins[0] == 0;
  if (begins_at_0 && rises && cut.begins.back() < layers)
    return;
  refuse_cut(cat("beginnings that rise from 0 to at most ",
                 static_cast<int64_t>(layers) - 1,
                 ", got ",
                 join(cut.begins, ", "),
                 "; name the first layer of each stage once"));
}

size_t end_of(const StageCut& cut, size_t stage, size_t layers) {
  return stage + 1 < cut.begins.size() ? cut.begins[stage + 1] : layers;
}

// Notes in each stage which parameters several of them have.
void note_shared_parameters(const std::vector<std::shared_ptr<CutStage>>& stages) {
  SharedParameters users;
  for (int stage = 0; stage < std::ssize(stages); ++stage) {
    for (const Tensor& parameter : distinct_parameters(*stages[stage])) {
      const c10::weak_intrusive_ptr<TensorImpl> weak(parameter.getIntrusivePtr());
      const auto user = users.try_emplace(parameter.unsafeGetTensorImpl(), StagesOfParameter{weak});
      user.first->second.stages.push_back(stage);
    }
  }
  std::erase_if(users, [](const auto& user) { return user.second.stages.size() == 1; });
  for (const auto& stage : stages)
    stage->shared = users;
}

}  // namespace

// It runs on this rank alone, and takes gradients even under NoGradGuard.
std::vector<LayerCost> measure_costs(torch::nn::Sequential model,
                                     const Tensor& sample,
                                     int repeats) {
  if (model->is_empty())
    refuse_cut("a model with layers, got an empty one; put layers in");
  const at::AutoGradMode with_gradients(true);
  const auto names = model->named_children().keys();
  std::vector<LayerCost> costs;
  Tensor x = sample;
  for (auto& child : *model) {
    const std::string& name = names[costs.size()];
    costs.push_back(cost_of(child, name, x, repeats));
  }
  return costs;
}

// All ranks call it together, so that all cut the model in the same place.
std::vector<LayerCost> average_costs(std::vector<LayerCost> costs, ProcessGroup group) {
  Tensor seconds = at::empty({std::ssize(costs)}, kDouble);
  for (const int64_t i : indices_below(std::ssize(costs)))
    seconds[i] = costs[i].seconds;
  group.all_reduce(seconds, ReduceOp::avg);
  for (const int64_t i : indices_below(std::ssize(costs)))
    costs[i].seconds = seconds[i].item<double>();
  return costs;
}

// Dynamic programming: best[s][end] cuts the first `end` layers into s + 1 stages.
StageCut balanced_cut(const std::vector<LayerCost>& costs, size_t stages, int64_t most_bytes) {
  const size_t layers = costs.size();
  if (stages < 1 || stages > layers)
    refuse_cut(cat("1 to ",
                   layers,
                   " stages of ",
                   plural(layers, "layer"),
                   ", got ",
                   stages,
                   "; take fewer stages or split layers"));
  std::vector<std::vector<PartialCut>> best(stages, std::vector<PartialCut>(layers + 1));
  for (size_t end = 1; end <= layers; ++end)
    try_last_stage(costs, 0, end, {}, most_bytes, best[0][end]);
  for (size_t stage = 1; stage < stages; ++stage) {
    for (size_t end = stage + 1; end <= layers; ++end) {
      // Each stage before has a layer at least, so this one cannot begin earlier.
      for (size_t begin = stage; begin < end; ++begin)
        try_last_stage(
            costs, begin, end, best[stage - 1][begin].dearest, most_bytes, best[stage][end]);
    }
  }
  if (best[stages - 1][layers].dearest == kNever)
    refuse_cut(cat("stages of at most ",
                   format_bytes(most_bytes),
                   " of parameters, got layers that do not fit into ",
                   stages,
                   "; take more stages or allow more"));
  StageCut cut{.begins = Indices(stages)};
  size_t end = layers;
  for (size_t stage = stages; stage-- > 0;)
    end = cut.begins[stage] = best[stage][end].begin_of_last;
  return cut;
}

// The first stage always begins at 0, so the caller names only the later ones.
StageCut cut_at(size_t layers, Indices later_begins) {
  later_begins.insert(later_begins.begin(), 0);
  StageCut cut{.begins = std::move(later_begins)};
  check_cut(cut, layers);
  return cut;
}

std::string to_text(const StageCut& cut, const std::vector<LayerCost>& costs) {
  check_cut(cut, costs.size());
  const double whole = sum_of(costs, 0, costs.size()).first;
  double dearest = 0;
  std::string text;
  for (const size_t stage : indices_of(cut.begins)) {
    const size_t begin = cut.begins[stage];
    const size_t end = end_of(cut, stage, costs.size());
    const auto [seconds, bytes] = sum_of(costs, begin, end);
    dearest = std::max(dearest, seconds);
    text += cat("stage ",
                stage,
                ": layers ",
                begin,
                "-",
                end - 1,
                " (",
                costs[begin].name,
                " to ",
                costs[end - 1].name,
                "), ",
                seconds * 1e3,
                " ms, ",
                bytes,
                " bytes of parameters, gives ",
                costs[end - 1].activation_bytes,
                " bytes\n");
  }
  const double even = whole / static_cast<double>(cut.begins.size());
  return text + cat("the slowest stage takes ",
                    dearest * 1e3,
                    " ms; an even division of ",
                    whole * 1e3,
                    " ms would be ",
                    even * 1e3,
                    " ms\n");
}

// The stages share the model's layers, and the layers keep their names.
std::vector<torch::nn::Sequential> cut_into_stages(torch::nn::Sequential model,
                                                   const StageCut& cut) {
  check_cut(cut, model->size());
  const auto names = model->named_children().keys();
  std::vector<std::shared_ptr<CutStage>> stages;
  auto child = model->begin();
  for (const size_t stage : indices_of(cut.begins)) {
    const auto piece = std::make_shared<CutStage>();
    for (size_t i = cut.begins[stage]; i < end_of(cut, stage, model->size()); ++i)
      piece->push_back(names[i], *child++);
    stages.push_back(piece);
  }
  note_shared_parameters(stages);
  return mapped(stages, [](const std::shared_ptr<torch::nn::SequentialImpl>& stage) {
    return torch::nn::Sequential(stage);
  });
}

// Layers are registered under their names in the model, so that its checkpoints fit.
StagesImpl::StagesImpl(torch::nn::Sequential model,
                       const StageCut& cut,
                       std::vector<Device> devices)
    : stages_(cut_into_stages(std::move(model), cut)), devices_(std::move(devices)) {
  if (devices_.size() != stages_.size())
    refuse_cut(cat("a device for each of ",
                   plural(stages_.size(), "stage"),
                   ", got ",
                   devices_.size(),
                   "; name one more than once where stages share it"));
  for (const size_t i : indices_of(stages_)) {
    stages_[i]->to(devices_[i]);
    for (const auto& child : stages_[i]->named_children())
      register_module(child.key(), child.value());
  }
}

Tensor StagesImpl::forward(Tensor x) {
  for (const size_t i : indices_of(stages_))
    // The host need not wait for copies to a GPU.
    x = stages_[i]->forward(x.to(devices_[i], /*non_blocking=*/devices_[i].is_cuda()));
  return x;
}

}  // namespace muster

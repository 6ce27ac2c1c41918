// DiLoCo: ranks train alone for `every` steps, and then take one step together. `common_` is the
// model after the last step together; the distance to it, averaged over the ranks, is the gradient
// of an outer SGD with momentum. All ranks compute that step alike, so parameters are not sent.
#include "muster/parallel/averaging/diloco.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <string>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/parallel/agree.h"
#include "muster/parallel/averaging/average.h"

namespace muster {

namespace {

// Returns what is wrong with the options, or nothing; require_agreement() throws it on all ranks.
std::string wrong_diloco(const DiLoCoOptions& options, int rank) {
  const auto wrong = [&](const char* expected, const std::string& got) {
    return cat("DiLoCo: expected ", expected, ", got ", got, " (rank ", rank, "); correct it");
  };
  if (options.every < 1)
    return wrong("an outer step every 1 step or more", cat("every ", options.every));
  if (!(options.learning_rate > 0 && std::isfinite(options.learning_rate)))
    return wrong("a learning rate above 0", cat(options.learning_rate));
  if (!(options.momentum >= 0 && options.momentum < 1))
    return wrong("a momentum of 0 to less than 1", cat(options.momentum));
  return "";
}

// By how much the ranks' steps have moved the model on average, per parameter. It is the gradient
// of the outer step, so it points back.
struct MeanMoves {
  Tensors moves;
  Tensor trained;  // per parameter, the share of the ranks that train it
};

MeanMoves mean_moves(ProcessGroup& group, const Tensors& common, const Tensors& now) {
  Tensors moves = mapped_indices(common.size(), [&](size_t i) { return common[i].sub(now[i]); });
  const auto trained =
      mapped(now, [](const Tensor& parameter) { return parameter.requires_grad() ? 1.0F : 0.0F; });
  moves.push_back(at::tensor(trained, at::device(group.device()).dtype(kFloat)));
  average_over(group, moves);
  Tensor shares = moves.back().cpu();
  moves.pop_back();
  return {.moves = std::move(moves), .trained = std::move(shares)};
}

// A state may be one of another model.
Tensor own_copy(const SavedState& state, const std::string& name, const Tensor& like) {
  const Tensor& saved = state.tensor("DiLoCo", name);
  if (saved.sizes() != like.sizes()) {
    throw invalid_argument("DiLoCo: expected a saved state with the tensor '",
                           name,
                           "' of shape [",
                           sizes_text(like),
                           "], got shape [",
                           sizes_text(saved),
                           "]; load the state of the same model");
  }
  return saved.to(like.options()).clone();
}

}  // namespace

// All ranks of the group construct it together, since it compares options and values. The first
// outer step starts from the parameters as they are now.
DiLoCo::DiLoCo(const GivenParameters& parameters, ProcessGroup group, DiLoCoOptions options)
    : group_(std::move(group)),
      options_(std::move(options)),
      model_(parameters.model),
      memory_(averaged_ones(parameters.tensors)),
      buffers_(averaged_ones(options_.buffers)) {
  Terms terms{{"every", cat(options_.every)},
              {"learning rate", cat(options_.learning_rate)},
              {"momentum", cat(options_.momentum)},
              {"nesterov", cat(options_.nesterov)}};
  append_all(terms, terms_of("parameter", parameters.tensors));
  append_all(terms, terms_of("buffer", options_.buffers));
  require_agreement(group_, "DiLoCo", wrong_diloco(options_, group_.job_rank()), terms);
  common_ = mapped(memory_.parameters(),
                   [&](const Tensor& parameter) { return parameter.detach().clone(); });
}

const Tensors& DiLoCo::present_parameters() const {
  require_present("DiLoCo", model_, memory_.parameters());
  return memory_.parameters();
}

// The outer step would take the way from the values before to those that were loaded for learning.
void DiLoCo::take_present() {
  const Tensors& parameters = present_parameters();
  require_agreement(group_, "DiLoCo", "", terms_of("parameter", parameters));
  for (const size_t i : indices_of(parameters))
    common_[i] = parameters[i].detach().clone();
  memory_.remember();
}

// The next outer step would take the way to loaded values for learning. Other memory alone is no
// proof of it: a rank may have loaded its own values of this step, or an optimizer moved them.
void DiLoCo::warn_of_other_memory() {
  if (warned_ || group_.rank() > 0 || !memory_.is_other())
    return;
  warned_ = true;
  log_warning(
      "DiLoCo: expected take_present() where weights are loaded after the constructor, got "
      "parameters with other memory in step ",
      steps_,
      " without it (rank ",
      group_.job_rank(),
      "); if their values are other ones too, as after torch::load, call it on all ranks before "
      "this step");
}

// All ranks call it equally often, so they reach the outer step, which is collective, together.
bool DiLoCo::step() {
  warn_of_other_memory();
  if (++steps_ % options_.every != 0)
    return false;
  step_outside();
  return true;
}

// The outer step repeats the arithmetic of torch::optim::SGD operation by operation, so that its
// results are bitwise those.
void DiLoCo::step_outside() {
  const NoGradGuard no_grad;
  const Tensors& parameters = present_parameters();
  const auto [moves, trained] = mean_moves(group_, common_, parameters);
  average_over(group_, buffers_);
  // The first outer step starts the momentum with the move itself, as torch::optim::SGD does.
  const bool first = momentum_.empty();
  const auto* const shares = trained.const_data_ptr<float>();
  for (const size_t i : indices_of(moves)) {
    Tensor move = moves[i];
    if (options_.momentum != 0) {
      if (first) {
        momentum_.push_back(move.clone());
      } else {
        momentum_[i].mul_(options_.momentum).add_(move);
      }
      move = options_.nesterov ? move.add(momentum_[i], options_.momentum) : momentum_[i];
    }
    // An optimizer leaves out what has no gradient: momentum alone moves nothing.
    const bool is_frozen = shares[i] == 0;
    if (is_frozen && !moves[i].any().item<bool>())
      continue;
    common_[i].add_(move, -options_.learning_rate);
    parameters[i].copy_(common_[i]);
  }
}

// The tensors share memory with this object, so the caller saves or copies them before the next
// step.
SavedState DiLoCo::state() const {
  SavedState saved{
      .numbers = {{"steps", as_number(steps_)}, {"has_momentum", momentum_.empty() ? 0.0 : 1.0}}};
  for (const size_t i : indices_of(common_))
    saved.tensors[cat("common.", i)] = common_[i];
  for (const size_t i : indices_of(momentum_))
    saved.tensors[cat("momentum.", i)] = momentum_[i];
  return saved;
}

// Everything is read before anything is replaced, so a state that does not fit changes nothing.
void DiLoCo::load_state(const SavedState& state) {
  const int64_t steps = state.whole_number("DiLoCo", "steps");
  const bool has_momentum = state.number("DiLoCo", "has_momentum") != 0;
  Tensors common;
  Tensors momentum;
  for (const size_t i : indices_of(common_)) {
    common.push_back(own_copy(state, cat("common.", i), common_[i]));
    if (has_momentum)
      momentum.push_back(own_copy(state, cat("momentum.", i), common_[i]));
  }
  common_ = std::move(common);
  momentum_ = std::move(momentum);
  steps_ = steps;
  is_loaded_ = true;
  memory_.remember();
}

}  // namespace muster

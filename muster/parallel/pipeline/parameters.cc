// The parameters of a pipeline as those of one model: their norm, their pieces for a checkpoint,
// and their values. A tied weight, and one that several stages of a rank share, counts once. Ranks
// exchange lines of names, types and sizes, since a rank knows only its own stages.
#include "muster/parallel/pipeline/parameters.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/optim/parts.h"
#include "muster/parallel/pipeline/cut_stage.h"
#include "muster/parallel/tensor/parallel_parameters.h"

namespace muster {

namespace {

// The tied weights of this rank that another rank answers for.
TensorImpls copies_of(const TiedWeights& tied) {
  TensorImpls copies;
  for (const TiedWeight& weight : tied)
    if (weight.is_copy())
      copies.insert(weight.parameter().unsafeGetTensorImpl());
  return copies;
}

// Returns each parameter once, without those in `seen`, which then has them too.
Tensors without_seen(const Tensors& parameters, TensorImpls& seen) {
  return filtered(parameters, [&](const Tensor& parameter) {
    return seen.insert(parameter.unsafeGetTensorImpl()).second;
  });
}

// A sparse gradient is coalesced in place and stands by its values: repeated rows would count
// twice.
Tensor gradient_values_of(const Tensor& parameter) {
  Tensor& gradient = parameter.mutable_grad();
  if (!gradient.is_sparse())
    return gradient;
  gradient = gradient.coalesce();
  return gradient._values();
}

// As a double: squares of a large model may not fit into a float.
Tensor sum_of_squares(const Tensors& parameters, Device device) {
  Tensor sum = at::zeros({}, at::TensorOptions().device(device).dtype(kDouble));
  for (const Tensor& parameter : parameters)
    if (parameter.grad().defined())
      sum += at::linalg_vector_norm(gradient_values_of(parameter), 2, {}, false, kDouble).square();
  return sum;
}

// Without the other ranks' parts each rank would clip by another norm, also what all of them have.
void require_ranks_of_parts(const Tensors& divided,
                            const std::optional<ProcessGroup>& divided_over,
                            const ProcessGroup& group) {
  const Ints given = divided_over ? divided_over->job_ranks() : Ints();
  for (const Tensor& parameter : divided) {
    const Ints ranks = optim::ranks_of_layer_parts(parameter);
    if (ranks.empty() || ranks == given)
      continue;
    throw failed_precondition(
        "clip_grad_norm: expected the group over which the stages' layers are divided, "
        "that of ranks ",
        join(ranks, ", "),
        ", got ",
        divided_over ? cat("that of ranks ", join(given, ", ")) : "none",
        " (rank ",
        group.job_rank(),
        "); pass it as the second argument, such as mesh.group(\"tp\")");
  }
}

// Names that two stages of this rank have for parameters which are neither the same nor tied.
StringSet colliding_names(const PipelineStages& stages, const TiedWeights& tied) {
  TensorImpls tied_weights;
  for (const TiedWeight& weight : tied)
    tied_weights.insert(weight.parameter().unsafeGetTensorImpl());
  std::map<std::string, const TensorImpl*> known;
  StringSet colliding;
  for (const PipelineStage& stage : stages) {
    for (const auto& item : stage.module->named_parameters()) {
      const TensorImpl* which = item.value().unsafeGetTensorImpl();
      const auto [found, is_new] = known.try_emplace(item.key(), which);
      if (!is_new && found->second != which && !tied_weights.contains(which))
        colliding.insert(item.key());
    }
  }
  return colliding;
}

// A parameter of another rank, as a line tells it: owner's mark, type, sizes, name.
struct StageParameter {
  int owner;
  bool is_copy;  // of a weight that another rank has too
  ScalarType type;
  Int64s sizes;
};

// parameter_of_line() reads the fields back in this order.
std::string line_of(const std::string& name, const Tensor& value, bool is_copy) {
  return cat(is_copy ? 1 : 0,
             '\t',
             static_cast<int>(value.scalar_type()),
             '\t',
             join(value.sizes(), ","),
             '\t',
             name,
             '\n');
}

int64_t number_in_line(const std::string& text) {
  return parse_int(text).value_or(0);  // another rank's line_of() wrote it
}

// The line comes from line_of() of another rank, so its fields are not checked.
std::pair<std::string, StageParameter> parameter_of_line(const std::string& line, int owner) {
  const Strings fields = split(line, '\t');
  StageParameter parameter{.owner = owner,
                           .is_copy = fields[0] == "1",
                           .type = static_cast<ScalarType>(number_in_line(fields[1])),
                           .sizes = {}};
  if (!fields[2].empty())
    append_mapped(parameter.sizes, split(fields[2], ','), number_in_line);
  return {fields[3], std::move(parameter)};
}

// Says from which rank each name gets its values. Every rank sees the same lines, so all refuse or
// none.
std::map<std::string, StageParameter> owners_of_names(const Strings& lines_by_rank) {
  std::map<std::string, StageParameter> owners;
  for (const int rank : int_indices_of(lines_by_rank)) {
    for (const std::string& line : split(lines_by_rank[rank], '\n')) {
      if (line.empty())
        continue;
      auto [name, parameter] = parameter_of_line(line, rank);
      const bool is_copy = parameter.is_copy;
      const auto [found, is_new] = owners.try_emplace(name, std::move(parameter));
      if (is_new || is_copy)
        continue;
      throw invalid_argument(
          "gather_parameters: expected a different name for each parameter of a pipeline, got '",
          name,
          "' on ranks ",
          found->second.owner,
          " and ",
          rank,
          "; register the stages' modules under the whole model's names");
    }
  }
  return owners;
}

// All ranks save a tied weight under the first one's name, as a model on one rank does that has it
// once.
void name_as_tied(TensorPiece& piece, const TiedWeight& weight) {
  const Strings& names = weight.names();
  if (names.empty())
    return;
  piece.name = names[0];
  piece.aliases.assign(names.begin() + 1, names.end());
}

// What the cut has noted that made the module, or a module inside of it. A stage that was made by
// hand has none, whatever was cut before.
SharedParameters shared_parameters(Module& stage) {
  SharedParameters shared;
  for (const auto& module : stage.modules())
    if (const auto* const cut = dynamic_cast<const CutStage*>(module.get()))
      shared.insert(cut->shared.begin(), cut->shared.end());
  return shared;
}

}  // namespace

// It returns an empty place where no stage of this rank has the parameter.
StagePlace place_in_stages(const PipelineStages& stages, const Tensor& parameter) {
  if (!parameter.defined())
    return {};
  for (const PipelineStage& stage : stages)
    for (const TensorPiece& piece : parallel_pieces(*stage.module))
      if (piece.tensor.is_same(parameter))
        return {.module = stage.module, .name = piece.name};
  return {};
}

// Each rank would train a weight of its own from the first step on. Copies of a frozen one stay
// equal.
std::string untied_problem(const PipelineStages& stages,
                           const TiedWeights& tied,
                           const PipelineSchedule& schedule,
                           const ProcessGroup& group) {
  const auto is_elsewhere = [&](int stage) {
    return stage < schedule.stages && schedule.rank_of(stage) != group.rank();
  };
  for (const PipelineStage& stage : stages) {
    SharedParameters untied = shared_parameters(*stage.module);
    std::erase_if(untied, [&](const auto& one) {
      const auto is_it = [&](const TiedWeight& weight) {
        return weight.parameter().unsafeGetTensorImpl() == one.first;
      };
      return any_of(tied, is_it) || none_of(one.second.stages, is_elsewhere);
    });
    if (untied.empty())
      continue;  // of a stage with many layers, a list of names would take as long as some layers
    for (const auto& item : stage.module->named_parameters()) {
      const auto* const found = value_at(untied, item.value().unsafeGetTensorImpl());
      if (found == nullptr || !item.value().requires_grad())
        continue;
      return cat(
          "expected weights that stages of several ranks share to be tied, got '",
          item.key(),
          "', which stages ",
          join(found->stages, ", "),
          " share, untied (rank ",
          group.job_rank(),
          "); call pipeline.tie(weight) on all ranks, for each such weight, before the first step");
    }
  }
  return {};
}

// All ranks call it together, since the squares are summed over the group. The factor stays on the
// device, so that the host need not wait for it.
Tensor clip_stages(const PipelineStages& stages,
                   const TiedWeights& tied,
                   double max_norm,
                   ProcessGroup& group,
                   const std::optional<ProcessGroup>& divided_over) {
  if (!(max_norm >= 0)) {
    throw invalid_argument("clip_grad_norm: expected a max_norm of 0 or more, got ",
                           max_norm,
                           " (rank ",
                           group.job_rank(),
                           "); 1.0 is a common choice");
  }
  const NoGradGuard no_grad;
  Tensors all;
  TensorImpls counted = copies_of(tied);
  TensorImpls seen;
  Tensor divided = sum_of_squares({}, group.device());
  Tensor replicated = divided.clone();
  for (const PipelineStage& stage : stages) {
    const ParallelParameters parameters = parallel_parameters(*stage.module);
    require_ranks_of_parts(parameters.divided, divided_over, group);
    append_all(all, without_seen(stage.module->parameters(), seen));
    divided += sum_of_squares(without_seen(parameters.divided, counted), group.device());
    replicated += sum_of_squares(without_seen(parameters.replicated, counted), group.device());
  }
  // Divided parameters lie in parts on these ranks, so their squares are summed there first.
  if (divided_over)
    ProcessGroup(*divided_over).all_reduce(divided);
  Tensor squares = divided + replicated;
  group.all_reduce(squares);
  const Tensor norm = squares.sqrt();
  const Tensor factor = (norm + 1e-6).reciprocal().mul(max_norm).clamp_max(1.0);
  for (const Tensor& parameter : all)
    if (parameter.grad().defined())
      gradient_values_of(parameter).mul_(factor.to(parameter.scalar_type()));
  return norm.to(all.empty() ? kFloat : all[0].scalar_type());
}

// It exchanges nothing. A parameter that two stages share under one name comes once.
TensorPieces pieces_of_stages(const PipelineStages& stages,
                              const TiedWeights& tied,
                              const ProcessGroup& group) {
  if (const auto names = colliding_names(stages, tied); !names.empty()) {
    throw invalid_argument(
        "pipeline: expected a different name for each parameter of a pipeline, got '",
        *names.begin(),
        "' in two stages of this rank; register the stages' modules under the whole model's names");
  }
  std::map<const TensorImpl*, const TiedWeight*> tied_weights;
  for (const TiedWeight& weight : tied)
    tied_weights.emplace(weight.parameter().unsafeGetTensorImpl(), &weight);
  std::set<std::pair<std::string, const TensorImpl*>> seen;
  TensorPieces all;
  for (const PipelineStage& stage : stages) {
    for (TensorPiece& piece : parallel_pieces(*stage.module)) {
      const TensorImpl* which = piece.tensor.unsafeGetTensorImpl();
      if (const TiedWeight* const weight = find_or(tied_weights, which)) {
        name_as_tied(piece, *weight);
      } else {
        piece.owner = cat("rank ", group.rank(), " of the pipeline");
      }
      if (seen.emplace(piece.name, which).second)
        all.push_back(std::move(piece));
    }
  }
  return all;
}

// All ranks call it together, and each gets all parameters. The map of names is sorted, so the
// broadcasts have one order.
WholeParameters gather_stages(const PipelineStages& stages,
                              const TiedWeights& tied,
                              ProcessGroup& group) {
  const NoGradGuard no_grad;
  const TensorImpls tied_copies = copies_of(tied);
  WholeParameters mine;
  StringSet copies;
  std::string lines;
  for (const PipelineStage& stage : stages) {
    mine.merge(gather_parameters(*stage.module));
    for (const auto& item : stage.module->named_parameters())
      if (tied_copies.contains(item.value().unsafeGetTensorImpl()))
        copies.insert(item.key());
  }
  for (const auto& [name, value] : mine)
    lines += line_of(name, value, copies.contains(name));
  // A name told twice is refused by all ranks.
  for (const std::string& name : colliding_names(stages, tied))
    lines += line_of(name, mine.at(name), false);
  WholeParameters all;
  for (const auto& [name, parameter] :
       owners_of_names(group.all_gather_bytes(lines, "parameters of a pipeline"))) {
    const bool is_mine = parameter.owner == group.rank();
    Tensor value =
        is_mine ? mine.at(name).contiguous()
                : at::empty(parameter.sizes,
                            at::TensorOptions().device(group.device()).dtype(parameter.type));
    group.broadcast(value, parameter.owner);
    all.emplace(name, std::move(value));
  }
  return all;
}

}  // namespace muster

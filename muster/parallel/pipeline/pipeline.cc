// Runs a schedule for one rank: action by action, receiving what an action needs and sending what
// it makes. Before a step all ranks agree on the batch, since one that throws alone would leave the
// others waiting. Gradients over replicas are averaged as soon as a stage is done, tied weights at
// the end. Evaluation has messages and forms of its own, as its batch may have another size.
#include "muster/parallel/pipeline/pipeline.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/comm/job_ranks.h"
#include "muster/ddp/gradient_reducer.h"
#include "muster/ddp/local_gradients.h"
#include "muster/optim/each_once.h"
#include "muster/optim/lbfgs_caller.h"
#include "muster/optim/parts.h"
#include "muster/parallel/pipeline/batch_agreement.h"
#include "muster/parallel/pipeline/checks.h"
#include "muster/parallel/pipeline/failure.h"
#include "muster/parallel/pipeline/gradients.h"
#include "muster/parallel/pipeline/messages.h"
#include "muster/parallel/pipeline/parameters.h"
#include "muster/parallel/pipeline/replicas.h"
#include "muster/parallel/pipeline/simulation.h"
#include "muster/parallel/pipeline/stage.h"

namespace muster {

namespace {

using RunKind = PipelineAction::Kind;

// A parameter that several stages share comes once, so an optimizer steps it once.
Tensors parameters_of(const PipelineStages& stages) {
  return optim::each_once(
      concatenated(stages, [](const PipelineStage& stage) { return stage.module->parameters(); }));
}

// Keeps the stages in evaluation mode. Afterwards every module has the mode that it had: one of
// them may be in another than its stage. Parents come first, as train() sets all inside. All modes
// are noted before any changes, since stages may share a module.
class StagesInEvaluation : NoCopy {
 public:
  explicit StagesInEvaluation(const PipelineStages& stages) {
    for (const PipelineStage& stage : stages)
      for (const auto& module : stage.module->modules())
        modes_.emplace_back(module, module->is_training());
    for (const PipelineStage& stage : stages)
      stage.module->eval();
  }
  ~StagesInEvaluation() {
    for (const auto& [module, was_training] : modes_)
      module->train(was_training);
  }

 private:
  std::vector<std::pair<ModulePtr, bool>> modes_;
};

// Which tied weights, by their numbers, `holds` says it of: a bit for each.
int64_t bits_of(const TiedWeights& tied, const std::function<bool(const TiedWeight&)>& holds) {
  constexpr size_t kBits = 62;
  int64_t bits = 0;
  for (const size_t i : indices_below(std::min(tied.size(), kBits)))
    if (tied[i].parameter().defined() && holds(tied[i]))
      bits |= int64_t{1} << i;
  return bits;
}

bool is_trained(const TiedWeight& weight) {
  return weight.parameter().requires_grad();
}

// The rows of a micro-batch, as a view.
Tensor part_of(const Tensor& batch, int micro_batch, int micro_batches) {
  const int64_t rows = batch.size(0) / micro_batches;
  return batch.narrow(0, micro_batch * rows, rows);
}

// An output that the backward needs at once is not computed twice.
bool is_needed_by_next(const PipelineAction& action, const PipelineAction* next) {
  return next != nullptr && next->stage == action.stage && next->micro_batch == action.micro_batch;
}

}  // namespace

// Nothing here is locked, so one thread at a time may call a pipeline.
struct Pipeline::State : NoCopy {
  State(PipelineStages of_rank, ProcessGroup of_stages, PipelineOptions given);
  ~State() { optim::unmark_stage_parameters(marked); }

  Tensor run(const Tensor& input, const Tensor& target);
  Tensor run_or_explain(const Tensor& input,
                        const Tensor& target,
                        bool is_training,
                        const PipelineStepOptions& given);
  void act(const PipelineAction& action, bool recompute);
  void forward(const PipelineAction& action, bool recompute);
  void backward(const PipelineAction& action);
  void end_of_stage_if(const PipelineAction& action);
  void reduce_gradients();
  void follow_parameters();
  void follow_gradients();
  void warn_of_local_step();
  void check_tied_alike(int64_t apart, const char* rule, const char* got) const;
  void follow_replaced(const AgreedBatch& agreed);
  void warn_without_replicas() const;
  Tensor mean_loss(const Tensor& sum, bool share);

  bool is_last() const { return group.rank() == schedule.rank_of(schedule.stages - 1); }
  int chunk_of(int stage) const { return stage / schedule.ranks; }
  PipelineMessages& messages_now() { return trains ? messages : *evaluation; }
  Tensor compute(int stage, const Tensor& x, int micro_batch);

  ProcessGroup group;
  PipelineOptions options;
  const PipelineSchedule& schedule = options.schedule;
  PipelineStages stages;
  std::vector<StageRunner> runners;
  PipelineMessages messages;
  PipelineSchedule forwards;
  std::optional<PipelineMessages> evaluation;
  PipelineFailure failure;
  std::optional<Replicas> replicas;
  TiedWeights tied;
  BatchAgreement agreement;
  BatchForms training_forms, evaluation_forms;
  int64_t steps = 0;
  bool has_other_tied = false;   // on some rank, as after torch::load
  bool has_layer_parts = false;  // on some rank
  bool adds_up = false;          // gradients of steps before are not reduced yet
  LocalGradients local;          // the optimizer's step that must not follow those
  std::optional<int64_t> failed_step;
  Tensors marked;  // as a stage's, while this lives
  PipelineStats stats;

  // These belong to the step, or the evaluation, under way.
  bool trains = false;
  PipelineStepOptions of_step;
  Tensor whole_input, whole_target, loss_sum;
  Tensor last_loss;     // of a micro-batch, for its type
  Ints backwards_left;  // by stage of this rank
  Tensors leaves;       // of the backwards, where replicas look at them
  int held = 0;
};

// The runners call compute() by `this`, so the state must not move.
Pipeline::State::State(PipelineStages of_rank, ProcessGroup of_stages, PipelineOptions given)
    : group(std::move(of_stages)),
      options(std::move(given)),
      stages(std::move(of_rank)),
      messages(group, schedule),
      forwards(forwards_of(schedule)),
      failure(group),
      agreement(group, schedule) {
  for (const int chunk : int_indices_of(stages)) {
    const int stage = chunk * schedule.ranks + group.rank();
    runners.emplace_back([this, stage](const Tensor& x, int i) { return compute(stage, x, i); },
                         group.device());
  }
  if (group.size() > 1)
    marked = parameters_of(stages);
  optim::mark_stage_parameters(marked);
}

// Runs the stage's model on one micro-batch. The last stage's output is the loss.
Tensor Pipeline::State::compute(int stage, const Tensor& x, int micro_batch) {
  const Tensor output = stages[chunk_of(stage)].forward(x);
  if (stage + 1 == schedule.stages) {
    const Tensor loss =
        options.loss(output, part_of(whole_target, micro_batch, schedule.micro_batches));
    if (loss.defined() && loss.numel() == 1)
      return loss;
    throw invalid_argument("pipeline: expected a loss of one number, got ",
                           loss.defined() ? tensor_text(loss) : "none",
                           " of micro-batch ",
                           micro_batch,
                           " (rank ",
                           group.job_rank(),
                           "); return the mean over the micro-batch");
  }
  if (output.defined() && output.is_floating_point())
    return output;
  throw invalid_argument("pipeline: expected an activation of floating point, got ",
                         output.defined() ? tensor_text(output) : "none",
                         " from stage ",
                         stage,
                         " (rank ",
                         group.job_rank(),
                         "); cut the model elsewhere");
}

// A rank that sums the gradients of a tied weight would wait for one that has frozen its copy, and
// the sum would be of two weights where one rank has replaced its own. Every rank has the same
// bits, so all throw or none.
void Pipeline::State::check_tied_alike(int64_t apart, const char* rule, const char* got) const {
  if (apart == 0)
    return;
  const int which = std::countr_zero(std::bit_cast<uint64_t>(apart));
  throw invalid_argument("pipeline: expected a tied weight that is ",
                         rule,
                         ", got '",
                         join(tied[which].names(), "', '"),
                         "' ",
                         got,
                         " on some in step ",
                         steps,
                         " (rank ",
                         group.job_rank(),
                         "); do it to every copy");
}

// The tie is of names in the stages, so it stays when all ranks put other tensors there.
void Pipeline::State::follow_replaced(const AgreedBatch& agreed) {
  check_tied_alike(agreed.tied_replaced & agreed.tied_kept,
                   "replaced on all its ranks or kept on all",
                   "replaced");
  for (size_t i = 0; agreed.tied_replaced >> i != 0; ++i)
    if ((agreed.tied_replaced >> i & 1) != 0)
      tied[i].agree_again(group);
}

// Replicas that nobody averages train apart. Ranks that divide the layers of any stage are no
// replicas.
void Pipeline::State::warn_without_replicas() const {
  const bool is_told = group.rank() > 0 || steps > 0 || replicas.has_value();
  if (is_told || job_ranks() <= group.size() || has_layer_parts)
    return;
  log_warning(
      "pipeline: expected average_over for the replicas that a job of ",
      job_ranks(),
      " ranks has beside this pipeline's ",
      group.size(),
      ", got a first step without, so that each trains alone unless something else averages them "
      "(rank ",
      group.job_rank(),
      "); call pipeline.average_over(mesh.group(\"dp\")) before it");
}

// The output of the last stage stays here as a part of the loss; any other becomes a message.
void Pipeline::State::forward(const PipelineAction& action, bool recompute) {
  const auto needed = needed_by(action, schedule);
  const Tensor input = needed ? messages_now().receive(*needed)
                              : part_of(whole_input, action.micro_batch, schedule.micro_batches);
  Tensor output;
  if (trains) {
    output = runners[chunk_of(action.stage)].forward(
        action.micro_batch, input, /*takes_gradient=*/action.stage > 0, recompute);
    stats.held_peak = std::max(stats.held_peak, ++held);
  } else {
    output = compute(action.stage, input, action.micro_batch);
  }
  if (const auto made = made_by(action, schedule))
    return messages_now().send(*made, output);
  last_loss = output;
  // A half is too narrow for the sum.
  const ScalarType wide = c10::promoteTypes(kFloat, output.scalar_type());
  loss_sum = loss_sum.defined() ? loss_sum + output : output.to(wide);
}

// The last stage begins with a share of the mean over the micro-batches, times the step's scale.
void Pipeline::State::backward(const PipelineAction& action) {
  StageRunner& runner = runners[chunk_of(action.stage)];
  Tensor gradient;
  if (const auto needed = needed_by(action, schedule)) {
    gradient = messages_now().receive(*needed);
  } else {
    gradient = at::full_like(last_loss, of_step.scale / schedule.micro_batches);
  }
  const Tensor of_input = action.kind == RunKind::backward
                              ? runner.backward(action.micro_batch, gradient)
                              : runner.input_backward(action.micro_batch, gradient);
  if (const auto made = made_by(action, schedule))
    messages_now().send(*made, of_input);
}

// The stage's gradients are complete after its last backward, and their average starts then.
void Pipeline::State::end_of_stage_if(const PipelineAction& action) {
  --held;
  const int chunk = chunk_of(action.stage);
  if (--backwards_left[chunk] == 0 && replicas && of_step.reduce)
    replicas->start(chunk);
}

// Only the actions that complete a micro-batch's gradients count for the end of a stage.
void Pipeline::State::act(const PipelineAction& action, bool recompute) {
  switch (action.kind) {
    case RunKind::forward:
      return forward(action, recompute);
    case RunKind::input_grad:
      return backward(action);
    case RunKind::backward:
      backward(action);
      return end_of_stage_if(action);
    case RunKind::weight_grad:
      runners[chunk_of(action.stage)].weight_backward(action.micro_batch);
      return end_of_stage_if(action);
  }
}

// All ranks call it at the end of a step, in one order, since every part of it is collective.
void Pipeline::State::reduce_gradients() {
  if (replicas)
    replicas->finish();
  for (TiedWeight& weight : tied)
    weight.sum_gradients();
}

// Notes what a step has left in the gradients: their sums over the ranks, or this rank's own part.
void Pipeline::State::follow_gradients() {
  adds_up = !of_step.reduce;
  if (of_step.reduce)
    return local.forget();
  const auto note = [&](const Tensor& parameter, const std::string& name) {
    if (parameter.defined() && parameter.grad().defined())
      local.note(parameter, name);
  };
  for (const TiedWeight& weight : tied)
    note(weight.parameter(), "a tied weight");
  if (!replicas)
    return;
  for (const PipelineStage& stage : stages)
    for (const auto& item : stage.module->named_parameters())
      note(item.value(), item.key());
}

// An optimizer that steps on such gradients makes replicas and tied copies differ, and nobody would
// see it.
void Pipeline::State::warn_of_local_step() {
  if (!local.were_applied())
    return;
  log_warning(
      "pipeline: '",
      local.name(),
      "' has changed after a step with .reduce = false, whose gradients are this rank's alone "
      "(rank ",
      group.job_rank(),
      "); if an optimizer has stepped on them, replicas and tied weights differ from here on: set "
      ".reduce in the last step before each of the optimizer's");
  local.forget();
}

// Ranks other than the last get an undefined tensor unless the loss is shared.
Tensor Pipeline::State::mean_loss(const Tensor& sum, bool share) {
  Tensor loss = sum.defined() ? sum / schedule.micro_batches : sum;
  if (!share)
    return loss;
  // As a double on the CPU: the other ranks do not know its type.
  Tensor shared = at::empty({}, kDouble).fill_(0);
  if (is_last())
    shared.copy_(loss);
  group.broadcast(shared, schedule.rank_of(schedule.stages - 1));
  return is_last() ? loss : shared;
}

// Looks at what has happened to the parameters since the last step.
void Pipeline::State::follow_parameters() {
  if (trains)
    warn_of_local_step();
  if (trains && of_step.reduce)
    warn_without_replicas();
  if (trains && of_step.reduce && replicas)
    replicas->follow();
  if (has_other_tied)
    for (TiedWeight& weight : tied)
      weight.take_first();
  // Gradients that add up were set aside before the first of these steps, so they stay there.
  if (trains && !adds_up)
    for (TiedWeight& weight : tied)
      weight.begin_step();
}

Tensor Pipeline::State::run(const Tensor& input, const Tensor& target) {
  PipelineMessages& by = messages_now();
  whole_input = input;
  whole_target = target;
  loss_sum.reset();
  held = 0;
  stats = {};
  backwards_left.assign(stages.size(), schedule.micro_batches);
  by.begin_step();
  follow_parameters();
  const bool averages = trains && of_step.reduce && replicas;
  leaves.clear();
  for (StageRunner& runner : runners)
    runner.note_leaves(averages && replicas->looks_outside() ? &leaves : nullptr);
  const auto& actions = (trains ? schedule : forwards).actions[group.rank()];
  for (const size_t i : indices_of(actions)) {
    failure.now_at(actions[i], steps);
    const PipelineAction* const next = i + 1 < actions.size() ? &actions[i + 1] : nullptr;
    if (next != nullptr)  // its receive runs during this one
      by.expect(actions[i], *next);
    act(actions[i], options.recompute && !is_needed_by_next(actions[i], next));
  }
  by.finish_sends();
  stats.messages = by.sent();
  stats.bytes = by.bytes_sent();
  stats.waited_seconds = by.waited_seconds();
  if (trains && of_step.reduce)
    reduce_gradients();
  if (averages) {
    replicas->compare_outside(std::exchange(leaves, {}));
    replicas->compare_samples();
  }
  if (trains)
    follow_gradients();
  const Tensor loss = mean_loss(std::exchange(loss_sum, {}), options.share_loss);
  // The batch is not held beyond the step.
  whole_input.reset();
  whole_target.reset();
  last_loss.reset();
  return loss;
}

// An error becomes one that names step, action and stage, and the first rank that failed.
Tensor Pipeline::State::run_or_explain(const Tensor& input,
                                       const Tensor& target,
                                       bool is_training,
                                       const PipelineStepOptions& given) {
  if (failed_step) {
    throw failed_precondition(
        "pipeline: expected no step after one that failed, got one after step ",
        *failed_step,
        ", from which messages may be under way (rank ",
        group.job_rank(),
        "); make another Pipeline on all its ranks");
  }
  of_step = given;
  trains = is_training;
  for (TiedWeight& weight : tied)
    weight.look_again();
  const AgreedBatch agreed = agreement.agree(
      {.input = input,
       .target = target,
       .problem = trains ? untied_problem(stages, tied, schedule, group) : std::string(),
       .step = steps,
       .facts = {.trains = trains,
                 .reduces = given.reduce,
                 .has_other_tied = any_of(tied, &TiedWeight::has_other_memory),
                 .has_layer_parts =
                     steps == 0 && any_of(parameters_of(stages), optim::is_layer_part),
                 .tied_trained = bits_of(tied, is_trained),
                 .tied_frozen = bits_of(tied, std::not_fn(is_trained)),
                 .tied_replaced = bits_of(tied, &TiedWeight::is_replaced),
                 .tied_kept = bits_of(tied, std::not_fn(&TiedWeight::is_replaced))}},
      trains ? training_forms : evaluation_forms);
  check_tied_alike(agreed.tied_apart, "trained on all its ranks or frozen on all", "frozen");
  follow_replaced(agreed);
  has_other_tied = agreed.has_other_tied;
  has_layer_parts = agreed.has_layer_parts;
  try {
    const at::AutoGradMode mode(trains);
    return run(input, target);
  } catch (...) {
    failed_step = steps;
    failure.rethrow_explained();
  }
}

// All ranks construct it together: wrong stages or options on one are refused on all.
Pipeline::Pipeline(PipelineStages stages, ProcessGroup group, PipelineOptions options) {
  refuse_on_all_stages(group, problem_of_pipeline(stages, group, options));
  check_same_schedules(group, options);
  state_ = std::make_unique<State>(std::move(stages), std::move(group), std::move(options));
}

Pipeline::~Pipeline() = default;

// All ranks call it together. A step that throws is not counted.
Tensor Pipeline::step(const Tensor& input,
                      const Tensor& target,
                      const PipelineStepOptions& options) {
  const ProcessGroup& group = state_->group;
  constexpr int64_t kLookedSteps = 2;
  const bool is_looked_at = group.size() > 1 && state_->steps < kLookedSteps;
  if (is_looked_at && any_of(parameters_of(state_->stages), &Tensor::requires_grad))
    optim::refuse_lbfgs_caller("pipeline", group.job_rank());
  const Tensor loss = state_->run_or_explain(input, target, true, options);
  ++state_->steps;
  return loss;
}

// All ranks call it together. Training's statistics are put back also after an error.
Tensor Pipeline::evaluate(const Tensor& input, const Tensor& target) {
  State& state = *state_;
  if (!state.evaluation)
    state.evaluation.emplace(state.messages.channels(), state.forwards);
  const StagesInEvaluation mode(state.stages);
  const PipelineStats training_stats = state.stats;
  const std::unique_ptr<void, std::function<void(void*)>> back(
      &state, [&](void*) { state.stats = training_stats; });
  try {
    return state.run_or_explain(input, target, false, {});
  } catch (const Error& error) {
    if (!is_one_of(error.code(), ErrorCode::peer_failed, ErrorCode::timeout))
      throw;
    throw Error(
        error.code(),
        error.message(),
        " (pipeline: expected every rank in evaluate, which is collective: to evaluate on some "
        "ranks only, load what gather_parameters() returns on all into a whole model there)");
  }
}

// All ranks call it together, in one order, also those that do not have the weight.
void Pipeline::tie(const Tensor& parameter) {
  state_->tied.emplace_back(parameter, place_in_stages(state_->stages, parameter), state_->group);
}

// All replicas call it together.
void Pipeline::average_over(ProcessGroup replicas) {
  if (state_->replicas) {
    throw failed_precondition("pipeline: expected one group of replicas, got a second one (rank ",
                              state_->group.job_rank(),
                              "); join the axes, as mesh.joined({\"dp\", \"cp\"})");
  }
  state_->replicas.emplace(state_->stages, std::move(replicas), state_->options.broadcast_buffers);
}

Tensors Pipeline::parameters() const {
  return parameters_of(state_->stages);
}

// All ranks of the pipeline call it together.
Tensor Pipeline::clip_grad_norm(double max_norm, const std::optional<ProcessGroup>& divided_over) {
  return clip_stages(state_->stages, state_->tied, max_norm, state_->group, divided_over);
}

// All ranks of the pipeline call it together.
WholeParameters Pipeline::gather_parameters() const {
  return gather_stages(state_->stages, state_->tied, state_->group);
}

// It exchanges nothing, so a rank may call it alone.
TensorPieces Pipeline::pieces() const {
  return pieces_of_stages(state_->stages, state_->tied, state_->group);
}

// The statistics are those of the last training step, since an evaluation puts them back.
const PipelineStats& Pipeline::last_step() const {
  return state_->stats;
}

}  // namespace muster

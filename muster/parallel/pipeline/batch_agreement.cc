// Every rank looks at what it was given, and tells the others in a row: whether that is a batch of
// this pipeline, how many rows it has, and in the first steps a mark of its values.
#include "muster/parallel/pipeline/batch_agreement.h"

#include <algorithm>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/comm/rows.h"
#include "muster/parallel/pipeline/checks.h"

namespace muster {

namespace {

// So many batches of the ranks are compared: to read a batch's values costs time.
constexpr int kComparedBatches = 2;

template <class Row>
int64_t joined_bits(const std::vector<Row>& rows, int64_t StepFacts::* bits) {
  int64_t joined = 0;
  for (const Row& row : rows)
    joined |= row.*bits;
  return joined;
}

}  // namespace

struct BatchAgreement::Row : StepFacts {
  bool has_problem = false;
  int64_t inputs = -1, targets = -1;  // rows of the batch, on the rank that reads them
  BatchMark mark = {};
};

// What every rank answers alike, and what to do where they do not.
struct BatchAgreement::Alike {
  const char* rule;  // up to the number of ranks that answer yes
  const char* next_step;
};

// Returns what is wrong with a batch on the rank that gives it, or nothing.
std::string BatchAgreement::problem_of(const Tensor& batch,
                                       const char* name,
                                       int64_t step,
                                       std::optional<TensorForm>& known) const {
  const std::string where = cat(" (rank ", group_.job_rank(), ")");
  if (!batch.defined() || batch.dim() == 0)
    return cat("expected ",
               name,
               " of [batch, …], got ",
               batch.defined() ? "a scalar" : "none",
               where,
               "; give it on this rank");
  if (batch.size(0) == 0 || batch.size(0) % schedule_.micro_batches != 0)
    return cat("expected ",
               name,
               " rows that ",
               schedule_.micro_batches,
               " micro-batches divide, got ",
               batch.size(0),
               where,
               "; take another batch size or drop the last rows");
  if (!known)
    known = form_of(batch);
  if (form_of(batch) != *known)
    return cat("expected ",
               name,
               " like the first step's, ",
               to_text(*known),
               ", got ",
               tensor_text(batch),
               " in step ",
               step,
               ", from micro-batch 0 on",
               where,
               "; keep the shape, by padding for instance");
  return {};
}

AgreedBatch BatchAgreement::agree(const PipelineBatch& batch, BatchForms& known) {
  std::string problem = batch.problem;
  Row mine{batch.facts};
  if (is_first() && problem.empty()) {
    problem = problem_of(batch.input, "an input", batch.step, known.input);
    if (problem.empty())
      mine.inputs = batch.input.size(0);
  }
  if (is_last() && problem.empty()) {
    problem = problem_of(batch.target, "a target", batch.step, known.target);
    if (problem.empty())
      mine.targets = batch.target.size(0);
  }
  mine.has_problem = !problem.empty();
  const bool compares = compared_ < kComparedBatches;
  if (compares && (is_first() || is_last()))
    mine.mark = mark_of_batch(batch.input, batch.target);
  const auto rows = all_gather_rows(group_, mine);
  if (any_of(rows, &Row::has_problem))
    refuse_on_all_stages(group_, problem);
  check_same_call(rows, batch.step);
  check_same_reduce(rows, batch.step);
  check_as_many(rows);
  if (compares)
    warn_of_other_batches(rows, batch.step);
  return {
      .has_other_tied = any_of(rows, &Row::has_other_tied),
      .has_layer_parts = any_of(rows, &Row::has_layer_parts),
      .tied_apart = joined_bits(rows, &Row::tied_trained) & joined_bits(rows, &Row::tied_frozen),
      .tied_replaced = joined_bits(rows, &Row::tied_replaced),
      .tied_kept = joined_bits(rows, &Row::tied_kept)};
}

// A stage would train on what another evaluates: the messages look alike.
void BatchAgreement::check_same_call(const std::vector<Row>& rows, int64_t step) const {
  check_alike(rows,
              &Row::trains,
              {.rule = "every rank in evaluate, or every one in step, got ",
               .next_step = "evaluate is collective: to evaluate on some ranks only, load what "
                            "gather_parameters() returns on all into a whole model there"},
              step);
}

void BatchAgreement::check_same_reduce(const std::vector<Row>& rows, int64_t step) const {
  check_alike(rows,
              &Row::reduces,
              {.rule = ".reduce alike on every rank, got true on ",
               .next_step = "give true in the last of the steps that add up, on all ranks"},
              step);
}

// Every rank has the same rows, so all throw or none.
void BatchAgreement::check_alike(const std::vector<Row>& rows,
                                 bool Row::* answer,
                                 const Alike& expected,
                                 int64_t step) const {
  const int64_t yes = std::ranges::count(rows, true, answer);
  if (yes == 0 || yes == group_.size())
    return;
  throw invalid_argument("pipeline: expected ",
                         expected.rule,
                         yes,
                         " of ",
                         group_.size(),
                         " in step ",
                         step,
                         " (rank ",
                         group_.job_rank(),
                         "); ",
                         expected.next_step);
}

void BatchAgreement::check_as_many(const std::vector<Row>& rows) const {
  const int64_t inputs = rows.front().inputs;
  const int64_t targets = rows[last()].targets;
  if (inputs == targets)
    return;
  throw invalid_argument("pipeline: expected as many rows of input and target, got ",
                         inputs,
                         " (rank ",
                         group_.job_rank(0),
                         ") and ",
                         targets,
                         " (rank ",
                         group_.job_rank(last()),
                         "); let both ranks read the same batch");
}

// The first stage's rank reads the input, and the last stage's the target: of another batch, where
// their loaders share the data out over all ranks instead of over the replicas. A program may mean
// to give a rank what it does not read, so it is no error.
void BatchAgreement::warn_of_other_batches(const std::vector<Row>& rows, int64_t step) {
  ++compared_;
  if (!are_other_batches(rows.front().mark, rows[last()].mark))
    return;
  compared_ = kComparedBatches;
  if (!is_first())
    return;
  log_warning(
      "pipeline: expected the first stage's rank and the last stage's to read the same batch, got "
      "another input and another target on rank ",
      group_.job_rank(last()),
      " in step ",
      step,
      " (rank ",
      group_.job_rank(),
      "), so targets may not belong to their inputs; give all ranks of a pipeline one sampler: "
      "{.num_replicas = mesh.size(\"dp\"), .rank = mesh.rank(\"dp\")}");
}

}  // namespace muster

// A rank's memory has two peaks: when backward begins, with all activations there, and when it has
// ended, with what averages gradients and updates parameters. Each kind of memory is one function
// of a stage's share; the whole model is one stage. Shares are rounded up: the rank that has most
// must fit. Numbers are bytes unless a name says otherwise.
#include "muster/placement/model_memory.h"

#include <algorithm>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/divided_up.h"
#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr int64_t kFloat = 4;
constexpr int64_t kHalf = 2;
constexpr int64_t kBucket = 25 << 20;  // of ShardedOptimizer
constexpr double kMostBytes = 1e15;    // far from overflow, however a rank's share is computed
constexpr auto kModelExample =
    "layers=24,width=2048,heads=16,context=1024,vocabulary=50304,batch=8[,precision=bf16][,tied=1]"
    "[,micro_batches=8]";

[[noreturn]] void refuse_model(const std::string& expected, const std::string& got) {
  throw invalid_argument("--model: expected ", expected, ", got ", got, "; write ", kModelExample);
}

// Returns a size given on the command line; 100 million is far beyond any model's.
int64_t size_of_member(const std::string& name, const std::string& text) {
  constexpr int kMost = 100'000'000;
  const auto number = parse_number(text, 1, kMost);
  if (!number)
    refuse_model(cat("a number from 1 to ", kMost, " for ", name), in_quotes(printable(text)));
  return *number;
}

// The names are those of the example's options, so that they can be copied from there.
void set_member(ModelSizes& model, const std::string& name, const std::string& text) {
  if (name == "precision") {
    if (!is_one_of(text, "fp32", "bf16"))
      refuse_model("precision fp32 or bf16", in_quotes(text));
    model.bf16 = text == "bf16";
    return;
  }
  if (name == "tied") {
    if (!is_one_of(text, "0", "1"))
      refuse_model("0 or 1 for tied", in_quotes(text));
    model.tied = text == "1";
    return;
  }
  const std::pair<const char*, int64_t*> sizes[] = {{"layers", &model.layers},
                                                    {"width", &model.width},
                                                    {"heads", &model.heads},
                                                    {"context", &model.context},
                                                    {"vocabulary", &model.vocabulary},
                                                    {"batch", &model.batch},
                                                    {"micro_batches", &model.micro_batches}};
  for (const auto& [known, value] : sizes) {
    if (name == known) {
      *value = size_of_member(name, text);
      return;
    }
  }
  refuse_model("the model's sizes", in_quotes(name));
}

// Returns about how many bytes training takes in all, counted in doubles, which cannot overflow.
double rough_bytes(const ModelSizes& m) {
  const auto width = static_cast<double>(m.width);
  const auto layers = static_cast<double>(m.layers);
  const auto vocabulary = static_cast<double>(m.vocabulary);
  const auto context = static_cast<double>(m.context);
  const double tokens = static_cast<double>(m.batch) * context;
  const double parameters = (12 * width * layers + 2 * vocabulary + context) * width;
  const double activations = tokens * (96 * width * layers + 12 * vocabulary);
  return 16 * parameters + activations;
}

void check_model(const ModelSizes& m) {
  if (m.width % m.heads != 0) {
    refuse_model("a width that the heads divide",
                 cat("width ", m.width, " and ", m.heads, " heads"));
  }
  if (m.micro_batches > 0 && m.batch % m.micro_batches != 0) {
    refuse_model("a batch that micro_batches divides",
                 cat("batch ", m.batch, " and ", m.micro_batches, " micro-batches"));
  }
  if (rough_bytes(m) > kMostBytes)
    refuse_model("a model whose training takes less than 1 PB", "larger sizes");
}

// The share of one stage; the whole model is one stage.
struct StageShape {
  int64_t layers;
  bool first;
  bool last;

  // What of it is in no block.
  StageShape ends() const { return {0, first, last}; }
};

// Returns the parameters of a block that tensor parallelism shards: qkv, mix, up and down, and the
// biases of qkv and up.
int64_t block_matrices(const ModelSizes& m) {
  return 12 * m.width * m.width + 7 * m.width;
}

// Returns the other parameters of a block: the biases of mix and down, and two norms.
int64_t block_rest(const ModelSizes& m) {
  return 6 * m.width;
}

// Returns the parameters of one rank's share of a block.
int64_t block_parameters(const ModelSizes& m, int tensor) {
  return divided_up(block_matrices(m), tensor) + block_rest(m);
}

// Returns the parameters of one rank's share of the vocabulary's table.
int64_t table_parameters(const ModelSizes& m, int tensor) {
  return divided_up(m.vocabulary, tensor) * m.width;
}

int64_t stage_parameters(const ModelSizes& m, const StageShape& stage, int tensor) {
  const int64_t table = table_parameters(m, tensor);
  int64_t count = stage.layers * block_parameters(m, tensor);
  if (stage.first)
    count += table + m.context * m.width;
  if (stage.last)
    count += 2 * m.width;
  if (stage.last && (!m.tied || !stage.first))
    count += table;
  return count;
}

// Returns the bytes of one number that autocast computes with.
int64_t computed_bytes(const ModelSizes& m) {
  return m.bf16 ? kHalf : kFloat;
}

// Returns how many weights autocast casts, and keeps for backward.
int64_t cast_weights(const ModelSizes& m, const StageShape& stage, int tensor) {
  const int64_t in_blocks = stage.layers * divided_up(block_matrices(m), tensor);
  return stage.last ? in_blocks + table_parameters(m, tensor) : in_blocks;
}

// A block's forward keeps of a token: x, its norm, the sum and its norm whole; q, k, v, what was
// seen, and the wide layer before and after gelu sharded; the softmax's sums and the norms'
// moments.
int64_t block_activations(const ModelSizes& m, int tensor) {
  const int64_t whole = 2 * kFloat + 2 * computed_bytes(m);
  const int64_t sharded = 12 * computed_bytes(m) * m.width + kFloat * m.heads;
  return whole * m.width + divided_up(sharded, tensor) + 4 * kFloat;
}

// The end of the model keeps of a token: the last norm's input and output, and the log-softmax.
int64_t end_activations(const ModelSizes& m, int tensor) {
  const int64_t norm = kFloat + computed_bytes(m);
  return m.width * norm + divided_up(m.vocabulary, tensor) * kFloat;
}

// Backward needs beside the activations at once: two gradients of the logits, or the gradients of a
// block's wide layer, for each token.
int64_t backward_work(const ModelSizes& m, const StageShape& stage, int tensor) {
  const int64_t logits = stage.last ? 2 * divided_up(m.vocabulary, tensor) * kFloat : 0;
  const int64_t wide = divided_up(8 * m.width, tensor) * computed_bytes(m);
  return std::max(logits, wide - m.width * kFloat);
}

// Returns the bytes of a stage's largest parameter.
int64_t largest_parameter(const ModelSizes& m, const StageShape& stage, int tensor) {
  const bool has_table = stage.first || stage.last;
  const int64_t table = has_table ? table_parameters(m, tensor) : 0;
  return kFloat * std::max(table, divided_up(4 * m.width * m.width, tensor));
}

// Fully sharded training has whole in backward: what is in no block, two blocks, and their
// gradients, as they come, joined, and (not over NCCL) copied for the reduction; and one block's
// sharded ones.
int64_t gathered_in_backward(const ModelSizes& m,
                             const StageShape& stage,
                             int tensor,
                             int64_t gradients) {
  const int64_t ends = stage_parameters(m, stage.ends(), tensor);
  const int64_t whole = kFloat * (ends + 6 * block_parameters(m, tensor));
  return whole + gradients / std::max<int64_t>(stage.layers, 1);
}

// When the activations have gone, there are beside the gradients: two numbers of AdamW for each of
// the largest parameter's, or what is gathered or averaged.
int64_t bytes_at_the_end(const ModelSizes& m, const ModelDivision& d, const StageShape& stage) {
  const int64_t parameters = stage_parameters(m, stage, d.tensor) * kFloat;
  const auto buckets = [&](int64_t count) {
    return std::min(count * kBucket, parameters);
  };
  const int64_t sharers = d.sharding == Sharding::none ? 1 : d.data;
  const int64_t update = 2 * divided_up(largest_parameter(m, stage, d.tensor), sharers);
  const bool joins_gradients = d.pipeline > 1 && d.data > 1;
  switch (d.sharding) {
    case Sharding::none:
      return joins_gradients ? std::max(update, parameters) : update;
    case Sharding::optimizer:
      return std::max(update, buckets(2));
    case Sharding::gradients:
      // Not over NCCL there are copies of the buckets under way, too.
      return std::max(update, buckets(3) + buckets(2));
    case Sharding::all:
      return std::max(update, 2 * kFloat * stage_parameters(m, stage.ends(), d.tensor));
  }
  return update;
}

// The stage with this number, and what a step of it is made of.
struct StageStep {
  StageShape stage;
  int64_t micro_batches;
  int64_t tokens;  // of a micro-batch
  int64_t held;    // micro-batches whose activations are there at once (1F1B)
};

// The first stages get one layer more where they do not divide.
StageStep step_of(const ModelSizes& m, const ModelDivision& d, int number) {
  const int64_t all = d.pipeline;
  StageStep step{};
  step.stage = {.layers = m.layers / all, .first = number == 0, .last = number + 1 == all};
  if (number < m.layers % all)
    ++step.stage.layers;
  step.micro_batches = m.micro_batches > 0 ? m.micro_batches : m.batch;
  if (all == 1)
    step.micro_batches = 1;
  step.tokens = m.batch / step.micro_batches * m.context;
  step.held = std::min<int64_t>(step.micro_batches, all - number);
  return step;
}

// Under bf16 each micro-batch keeps cast weights of its own.
int64_t stage_activations(const ModelSizes& m, const ModelDivision& d, const StageStep& step) {
  const auto& [stage, micro_batches, tokens, held] = step;
  int64_t bytes = held * tokens * stage.layers * block_activations(m, d.tensor);
  if (stage.last)
    bytes += tokens * end_activations(m, d.tensor);
  if (d.pipeline > 1)
    bytes += held * tokens * m.width * kFloat;  // what is sent on
  if (m.bf16)
    bytes += held * kHalf * cast_weights(m, stage, d.tensor);
  return bytes;
}

// Returns what backward needs beside activations when it begins. In a pipeline that is also a
// micro-batch's gradient before it is added to the others', and messages on their way.
int64_t work_at_begin(const ModelSizes& m,
                      const ModelDivision& d,
                      const StageStep& step,
                      int64_t gradients) {
  const auto& [stage, micro_batches, tokens, held] = step;
  int64_t work = tokens * backward_work(m, stage, d.tensor);
  if (d.sharding == Sharding::all) {
    const int64_t ends = kFloat * stage_parameters(m, stage.ends(), d.tensor);
    work = std::max(work + ends, gathered_in_backward(m, stage, d.tensor, gradients));
  }
  if (d.pipeline > 1)
    work += largest_parameter(m, stage, d.tensor) + 3 * tokens * m.width * kFloat;
  return work;
}

RankBytes stage_bytes(const ModelSizes& m, const ModelDivision& d, int number) {
  const StageStep step = step_of(m, d, number);
  const int64_t parameters = stage_parameters(m, step.stage, d.tensor) * kFloat;
  const int64_t share = divided_up(parameters, d.data);
  const bool shards_gradients = is_one_of(d.sharding, Sharding::gradients, Sharding::all);

  RankBytes bytes{.parameters = parameters, .gradients = parameters, .optimizer = 2 * parameters};
  if (d.sharding != Sharding::none)
    bytes.optimizer = 2 * share;
  if (shards_gradients)
    bytes.gradients = share;
  if (d.sharding == Sharding::all)
    bytes.parameters = share;
  bytes.activations = stage_activations(m, d, step);

  // Two moments: backward begins, and all activations have gone. Gradients are there in the first
  // where they keep their memory, or add up over micro-batches.
  const int64_t work = work_at_begin(m, d, step, share);
  const bool keeps_gradients = !shards_gradients && (d.data > 1 || d.pipeline > 1);
  const int64_t kept = keeps_gradients ? bytes.gradients : 0;
  const int64_t at_begin = kept + bytes.activations + work;
  const int64_t end = bytes_at_the_end(m, d, step.stage);
  const int64_t at_end = bytes.gradients + end;
  bytes.other = at_begin >= at_end ? work : end;
  bytes.apart = bytes.gradients + bytes.activations + bytes.other - std::max(at_begin, at_end);
  return bytes;
}

// Returns the size that an axis of the mesh sets.
int& size_along(ModelDivision& division, const std::string& axis) {
  using Size = std::pair<std::string_view, int ModelDivision::*>;
  static constexpr Size kSizes[] = {{"dp", &ModelDivision::data},
                                    {"pp", &ModelDivision::pipeline},
                                    {"tp", &ModelDivision::tensor}};
  if (const Size* const size = element_with(kSizes, axis, &Size::first))
    return division.*size->second;
  throw invalid_argument("--mesh: expected axes out of dp, pp and tp with --model, got '",
                         axis,
                         "'; rename it, or leave out --model");
}

}  // namespace

// Every size has to be given, since a forgotten one would have no sensible default.
ModelSizes parse_model(std::string_view text) {
  ModelSizes model;
  StringSet given;
  for (const auto& member : split(text, ',')) {
    const size_t equals = member.find('=');
    if (equals == npos)
      refuse_model("NAME=VALUE", in_quotes(printable(member)));
    const auto name = printable(member.substr(0, equals));
    if (!given.insert(name).second)
      refuse_model(cat(name, " once"), "it twice");
    set_member(model, name, printable(member.substr(equals + 1)));
  }
  for (const char* needed : {"layers", "width", "heads", "context", "vocabulary", "batch"}) {
    if (!given.contains(needed))
      refuse_model(needed, "none");
  }
  check_model(model);
  return model;
}

// The whole model is one stage on one rank.
int64_t num_parameters(const ModelSizes& model) {
  return stage_parameters(model, {.layers = model.layers, .first = true, .last = true}, 1);
}

// Tensor and pipeline parallelism are compared only where no mesh says how much of each.
std::vector<ModelDivision> model_divisions(int num_ranks, const MeshShape& mesh) {
  ModelDivision division{.data = mesh.axes.empty() ? num_ranks : 1};
  for (const MeshAxis& axis : mesh.axes)
    size_along(division, axis.name) = axis.size;
  std::vector<ModelDivision> divisions;
  for (const auto& [name, sharding] : {std::pair{"DDP", Sharding::none},
                                       {"ZeRO-1", Sharding::optimizer},
                                       {"ZeRO-2", Sharding::gradients},
                                       {"fully sharded", Sharding::all}}) {
    division.name = name;
    division.sharding = sharding;
    divisions.push_back(division);
  }
  if (!mesh.axes.empty())
    return divisions;
  divisions.push_back({.name = "tensor parallel", .tensor = num_ranks});
  divisions.push_back({.name = "pipeline 1F1B", .pipeline = num_ranks});
  return divisions;
}

// Heads and layers cannot be cut in two.
std::string obstacle(const ModelSizes& model, const ModelDivision& division) {
  if (model.heads % division.tensor != 0)
    return cat(model.heads, " heads over ", division.tensor, " ranks");
  if (model.layers < division.pipeline)
    return cat(model.layers, " layers over ", division.pipeline, " stages");
  return {};
}

RankBytes rank_bytes(const ModelSizes& model, const ModelDivision& division) {
  RankBytes most;
  for (int stage = 0; stage < division.pipeline; ++stage) {
    const RankBytes bytes = stage_bytes(model, division, stage);
    if (bytes.total() > most.total())
      most = bytes;
  }
  return most;
}

int64_t most_layers(ModelSizes model, const ModelDivision& division, int64_t bytes) {
  const auto fits = [&](int64_t layers) {
    model.layers = layers;
    return obstacle(model, division).empty() && rank_bytes(model, division).total() <= bytes;
  };
  int64_t fitting = division.pipeline;
  if (!fits(fitting))
    return 0;
  int64_t too_many = 2 * fitting;
  while (fits(too_many))
    too_many *= 2;
  while (too_many - fitting > 1) {
    const int64_t middle = (fitting + too_many) / 2;
    if (fits(middle)) {
      fitting = middle;
    } else {
      too_many = middle;
    }
  }
  return fitting;
}

}  // namespace muster

#include "muster/placement/model_memory.h"

#include <algorithm>
#include <set>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr int64_t kFloat = 4, kHalf = 2;
constexpr int64_t kBucket = 25 << 20;  // of ShardedOptimizer
constexpr double kMostBytes = 1e15;    // far from overflow, however a rank's share is computed
constexpr const char* kModelExample =
    "layers=24,width=2048,heads=16,context=1024,vocabulary=50304,batch=8[,precision=bf16][,tied=1]"
    "[,micro_batches=8]";

[[noreturn]] void refuse_model(const std::string& expected, const std::string& got) {
  throw Error(ErrorCode::invalid_argument,
              cat("--model: expected ", expected, ", got ", got, "; write ", kModelExample));
}

int64_t size_of_member(const std::string& name, const std::string& text) {
  constexpr int64_t kMost = 100'000'000;
  const auto number = parse_int(text);
  if (!number || *number < 1 || *number > kMost)
    refuse_model(cat("a number from 1 to ", kMost, " for ", name), cat("'", text, "'"));
  return *number;
}

void set_member(ModelSizes& model, const std::string& name, const std::string& text) {
  if (name == "precision") {
    if (text != "fp32" && text != "bf16")
      refuse_model("precision fp32 or bf16", cat("'", text, "'"));
    model.bf16 = text == "bf16";
    return;
  }
  if (name == "tied") {
    if (text != "0" && text != "1")
      refuse_model("0 or 1 for tied", cat("'", text, "'"));
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
  refuse_model("the model's sizes", cat("'", name, "'"));
}

void check_model(const ModelSizes& m) {
  if (m.width % m.heads != 0)
    refuse_model("a width that the heads divide",
                 cat("width ", m.width, " and ", m.heads, " heads"));
  if (m.micro_batches > 0 && m.batch % m.micro_batches != 0)
    refuse_model("a batch that micro_batches divides",
                 cat("batch ", m.batch, " and ", m.micro_batches, " micro-batches"));
  const auto width = static_cast<double>(m.width), layers = static_cast<double>(m.layers);
  const auto vocabulary = static_cast<double>(m.vocabulary),
             context = static_cast<double>(m.context);
  const double tokens = static_cast<double>(m.batch) * context;
  if (16 * (12 * width * layers + 2 * vocabulary + context) * width +
          tokens * (96 * width * layers + 12 * vocabulary) >
      kMostBytes)
    refuse_model("a model whose training takes less than 1 PB", "larger sizes");
}

// Sizes of one stage's share; the whole model is one stage.
struct StageShape {
  int64_t layers;
  bool first, last;
};

int64_t divided_up(int64_t total, int64_t parts) {
  return (total + parts - 1) / parts;
}

// Parameters of a block: those that tensor parallelism divides, and the rest.
int64_t block_matrices(const ModelSizes& m) {
  return 12 * m.width * m.width + 7 * m.width;  // qkv, mix, up, down; biases of qkv and up
}
int64_t block_rest(const ModelSizes& m) {
  return 6 * m.width;  // biases of mix and down, two norms
}

int64_t stage_parameters(const ModelSizes& m, const StageShape& stage, int tensor) {
  const int64_t table = divided_up(m.vocabulary, tensor) * m.width;
  int64_t count = stage.layers * (divided_up(block_matrices(m), tensor) + block_rest(m));
  if (stage.first)
    count += table + m.context * m.width;
  if (stage.last)
    count += 2 * m.width;
  if (stage.last && (!m.tied || !stage.first))
    count += table;
  return count;
}

// Weights that autocast casts, and keeps for backward.
int64_t cast_weights(const ModelSizes& m, const StageShape& stage, int tensor) {
  return stage.layers * divided_up(block_matrices(m), tensor) +
         (stage.last ? divided_up(m.vocabulary, tensor) * m.width : 0);
}

// What a block's forward keeps of a token: x, its norm, the sum and its norm whole; q, k, v, what
// was seen, and the wide layer before and after gelu in parts; the softmax's sums and the norms'
// moments.
int64_t block_activations(const ModelSizes& m, int tensor) {
  const int64_t whole = m.bf16 ? 2 * kFloat + 2 * kHalf : 4 * kFloat;
  const int64_t parts = 12 * (m.bf16 ? kHalf : kFloat);
  return whole * m.width + divided_up(parts * m.width + kFloat * m.heads, tensor) + 4 * kFloat;
}

// What the end of the model keeps of a token: the last norm's input and output, the log-softmax.
int64_t end_activations(const ModelSizes& m, int tensor) {
  return m.width * (m.bf16 ? kFloat + kHalf : 2 * kFloat) +
         divided_up(m.vocabulary, tensor) * kFloat;
}

// What backward needs at once beside: two gradients of the logits, or the gradients of a block's
// wide layer.
int64_t backward_work(const ModelSizes& m, const StageShape& stage, int tensor) {
  const int64_t logits = stage.last ? 2 * divided_up(m.vocabulary, tensor) * kFloat : 0;
  const int64_t wide =
      divided_up(8 * m.width, tensor) * (m.bf16 ? kHalf : kFloat) - m.width * kFloat;
  return std::max(logits, wide);
}

// Of a stage's largest parameter.
int64_t largest_parameter(const ModelSizes& m, const StageShape& stage, int tensor) {
  const int64_t table = stage.first || stage.last ? divided_up(m.vocabulary, tensor) * m.width : 0;
  return kFloat * std::max(table, divided_up(4 * m.width * m.width, tensor));
}

// What fully sharded training has whole in backward: what is in no block, two blocks, and their
// gradients, as they come, joined, and (not over NCCL) copied for the reduction; and one block's of
// the parts.
int64_t gathered_in_backward(const ModelSizes& m,
                             const StageShape& stage,
                             int tensor,
                             int64_t gradients) {
  const int64_t block = divided_up(block_matrices(m), tensor) + block_rest(m);
  const StageShape rest{0, stage.first, stage.last};
  return kFloat * (stage_parameters(m, rest, tensor) + 6 * block) +
         gradients / std::max<int64_t>(stage.layers, 1);
}

// What is there beside gradients when the activations have gone: two numbers of AdamW for each of
// the largest parameter's; what is gathered or averaged.
int64_t bytes_at_the_end(const ModelSizes& m, const ModelDivision& d, const StageShape& stage) {
  const int64_t parameters = stage_parameters(m, stage, d.tensor) * kFloat;
  const auto buckets = [&](int64_t count) {
    return std::min(count * kBucket, parameters);
  };
  const int64_t update = 2 * divided_up(largest_parameter(m, stage, d.tensor),
                                        d.sharding == Sharding::none ? 1 : d.data);
  switch (d.sharding) {
    case Sharding::none:
      return std::max(update,
                      d.pipeline > 1 && d.data > 1 ? parameters : 0);  // joined, to be averaged
    case Sharding::optimizer:
      return std::max(update, buckets(2));
    case Sharding::gradients:
      return std::max(update,
                      buckets(3) + buckets(2));  // and, not over NCCL, copies of those under way
    case Sharding::all:
      return std::max(update,
                      2 * kFloat * stage_parameters(m, {0, stage.first, stage.last}, d.tensor));
  }
  return update;
}

RankBytes stage_bytes(const ModelSizes& m, const ModelDivision& d, int number) {
  const int64_t all = d.pipeline;
  const StageShape stage{
      m.layers / all + (number < m.layers % all ? 1 : 0), number == 0, number + 1 == all};
  const int64_t parameters = stage_parameters(m, stage, d.tensor) * kFloat;
  const int64_t micro_batches = all == 1 ? 1 : (m.micro_batches > 0 ? m.micro_batches : m.batch);
  const int64_t tokens = m.batch / micro_batches * m.context;
  const int64_t held = std::min<int64_t>(micro_batches, all - number);  // 1F1B
  const int64_t part = divided_up(parameters, d.data);

  RankBytes bytes{.parameters = parameters, .gradients = parameters, .optimizer = 2 * parameters};
  if (d.sharding != Sharding::none)
    bytes.optimizer = 2 * part;
  if (d.sharding == Sharding::gradients || d.sharding == Sharding::all)
    bytes.gradients = part;
  if (d.sharding == Sharding::all)
    bytes.parameters = part;
  bytes.activations = held * tokens * stage.layers * block_activations(m, d.tensor);
  if (stage.last)
    bytes.activations += tokens * end_activations(m, d.tensor);
  if (all > 1)
    bytes.activations += held * tokens * m.width * kFloat;  // what is sent on
  if (m.bf16)
    bytes.activations +=
        held * kHalf * cast_weights(m, stage, d.tensor);  // each micro-batch its own

  // Two moments: backward begins, and all activations have gone. Gradients are there in the first
  // where they keep their memory, or add up over micro-batches.
  int64_t work = tokens * backward_work(m, stage, d.tensor);
  if (d.sharding == Sharding::all) {
    const int64_t rest = kFloat * stage_parameters(m, {0, stage.first, stage.last}, d.tensor);
    work = std::max(work + rest, gathered_in_backward(m, stage, d.tensor, part));
  }
  if (all >
      1)  // a micro-batch's gradient before it is added to the others', and messages on their way
    work += largest_parameter(m, stage, d.tensor) + 3 * tokens * m.width * kFloat;
  const bool is_whole = d.sharding == Sharding::none || d.sharding == Sharding::optimizer;
  const int64_t kept = is_whole && (d.data > 1 || all > 1) ? bytes.gradients : 0;
  const int64_t at_begin = kept + bytes.activations + work, end = bytes_at_the_end(m, d, stage);
  const int64_t at_end = bytes.gradients + end;
  bytes.other = at_begin >= at_end ? work : end;
  bytes.apart = bytes.gradients + bytes.activations + bytes.other - std::max(at_begin, at_end);
  return bytes;
}

}  // namespace

ModelSizes parse_model(std::string_view text) {
  ModelSizes model;
  std::set<std::string> given;
  for (const std::string& member : split(text, ',')) {
    const size_t equals = member.find('=');
    if (equals == std::string::npos)
      refuse_model("NAME=VALUE", cat("'", printable(member), "'"));
    const std::string name = printable(member.substr(0, equals));
    if (!given.insert(name).second)
      refuse_model(cat(name, " once"), "it twice");
    set_member(model, name, printable(member.substr(equals + 1)));
  }
  for (const char* needed : {"layers", "width", "heads", "context", "vocabulary", "batch"})
    if (!given.contains(needed))
      refuse_model(needed, "none");
  check_model(model);
  return model;
}

int64_t num_parameters(const ModelSizes& model) {
  return stage_parameters(model, {.layers = model.layers, .first = true, .last = true}, 1);
}

std::vector<ModelDivision> model_divisions(int num_ranks, const MeshShape& mesh) {
  ModelDivision division{.data = num_ranks};
  if (!mesh.axes.empty())
    division.data = 1;
  for (const MeshAxis& axis : mesh.axes) {
    if (axis.name != "dp" && axis.name != "pp" && axis.name != "tp")
      throw Error(ErrorCode::invalid_argument,
                  cat("--mesh: expected axes out of dp, pp and tp with --model, got '",
                      axis.name,
                      "'; rename it, or leave out --model"));
    (axis.name == "dp"   ? division.data
     : axis.name == "pp" ? division.pipeline
                         : division.tensor) = axis.size;
  }
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
  int64_t least = division.pipeline;  // fits
  if (!fits(least))
    return 0;
  int64_t most = 2 * least;  // does not, when this is done
  while (fits(most))
    most *= 2;
  while (most - least > 1) {
    const int64_t middle = (least + most) / 2;
    (fits(middle) ? least : most) = middle;
  }
  return least;
}

}  // namespace muster

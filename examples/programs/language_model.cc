// Trains a small GPT on a file of tokens.
#include <muster/muster.h>
#include <torch/torch.h>

#include <iostream>

namespace nn = torch::nn;
constexpr int64_t kVocabulary = 65, kContext = 32, kWidth = 32, kSteps = 120;

struct LanguageModelImpl : nn::Module {
  at::Tensor forward(const at::Tensor& tokens) {
    const auto places = torch::arange(tokens.size(1), tokens.device());
    const auto x = (embedding(tokens) + positions(places)).transpose(0, 1);
    const auto mask = nn::TransformerImpl::generate_square_subsequent_mask(tokens.size(1));
    return head(encoder(x, mask.to(tokens.device()))).transpose(0, 1);
  }

  nn::Embedding embedding = register_module("embedding", nn::Embedding(kVocabulary, kWidth));
  nn::Embedding positions = register_module("positions", nn::Embedding(kContext, kWidth));
  nn::TransformerEncoderLayer layer{
      nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(4 * kWidth).dropout(0)};
  nn::TransformerEncoder encoder = register_module("encoder", nn::TransformerEncoder(layer, 2));
  nn::Linear head = register_module("head", nn::Linear(kWidth, kVocabulary));
};
TORCH_MODULE(LanguageModel);

void train(muster::Context& ctx) {
  const muster::TokenFile text(
      "text.bin", muster::TokenType::uint16, kContext, {.random = true, .vocabulary = kVocabulary});
  auto loader = ctx.loader(text, {.batch_size = 8, .accumulate = 2});

  torch::manual_seed(ctx.seed(1));
  LanguageModel net;
  net->to(ctx.device());
  muster::optim::AdamW optimizer(net->parameters(), 3e-3);
  muster::Schedule schedule(optimizer, muster::rate::cosine({.steps = kSteps, .warmup = 20}));
  muster::Metrics metrics(ctx, {.folder = "runs/language_model"});
  muster::Checkpoints checkpoints(ctx,
                                  {.folder = "runs/language_model", .every = 30, .resume = true});
  checkpoints.add("model", net).add("optimizer", optimizer).add("schedule", schedule);
  checkpoints.add("text", loader).add("metrics", metrics);
  checkpoints.restore();

  muster::DistributedDataParallel model(net, ctx.process_group());
  muster::TrainStep step(model, optimizer, {.clip_norm = 1.0, .schedule = &schedule});
  for (const auto& batch : loader.steps(kSteps)) {
    const auto loss = step(batch, [&] {
      return torch::cross_entropy_loss(model(batch.tokens).flatten(0, 1), batch.targets.flatten());
    });
    metrics.mean("loss", loss, batch.size());
    if (!batch.last)
      continue;
    metrics.write_every(10, loader.position().step, {{"lr", schedule.lr()}});
    if (checkpoints.save_or_stop(loader.position().step))
      return;
  }
}

int main(int argc, char** argv) {
  return muster::run(argc, argv, train);
}

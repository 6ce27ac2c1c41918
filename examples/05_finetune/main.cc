// Fine-tunes a GPT-2 as it is published, by LoRA: its weights stay as they are, and small adapters
// are trained and saved.
//
//   muster run -n 2 finetune --weights gpt2/model.safetensors --tokens train.bin
//   muster run -n 2 finetune --weights gpt2 --tokens train.bin --shard full --resume
//                                    the model divided over the ranks; goes on where it stopped
//   finetune --weights gpt2 --steps 0 --adapter runs/latest/adapter/adapter_model.safetensors
//            --merged tuned/model.safetensors
//                                    one file, as GPT-2's, with the adapter in its weights
//   finetune --weights gpt2 --steps 0 --prompt 464,2068,7586
//                                    writes on from tokens
//
// The names of published weights are in gpt2.h, LoRA in lora.h, and the adapter's file, which
// Python's peft reads too, in adapter_file.h. train.bin has the tokens that GPT-2's tokenizer gives
// in Python: np.array(tokenizer(text).input_ids, np.uint16).tofile("train.bin").
#include <muster/muster.h>
#include <torch/torch.h>

#include <functional>
#include <iostream>
#include <span>
#include <string>

#include "../02_gpt/sharded.h"
#include "adapter_file.h"
#include "base_model.h"
#include "gpt2.h"
#include "lora.h"
#include "options.h"

using AdamW = muster::optim::AdamW;

// What is trained, as this rank has it.
struct Trained {
  muster::StepModels model;
  muster::TensorPieces adapters;
  AdamW& optimizer;
  muster::TrainStepOptions step;  // how it clips
};

// `forward` gives logits. Returns false if it was asked to stop before the end.
bool train(const Options& options,
           muster::Context& ctx,
           BaseModel& base,
           const Trained& trained,
           const std::function<torch::Tensor(const torch::Tensor&)>& forward) {
  const std::string run_dir = ctx.run_dir(options.run_dir);
  const int64_t context = options.context > 0 ? options.context : base.sizes().context;
  const muster::TokenFile tokens(
      options.tokens, muster::TokenType::uint16, context, {.vocabulary = base.sizes().vocabulary});
  auto windows = ctx.loader(tokens,
                            {.batch_size = options.batch, .accumulate = options.accumulate},
                            {.seed = options.seed});
  muster::Schedule schedule(
      trained.optimizer,
      muster::rate::cosine({.steps = options.steps, .warmup = options.steps / 10}));
  muster::Precision precision(ctx.device(), options.precision);
  muster::Metrics metrics(ctx, {.folder = run_dir});

  muster::Checkpoints checkpoints(
      ctx,
      {.folder = run_dir + "/checkpoints", .every = options.save_every, .resume = options.resume});
  checkpoints.add("adapters", trained.adapters);
  checkpoints.add("optimizer", trained.optimizer, trained.adapters);
  checkpoints.add("base", base).add("schedule", schedule).add("precision", precision);
  checkpoints.add("windows", windows).add("metrics", metrics);
  checkpoints.restore();

  muster::TrainStepOptions step_options = trained.step;
  step_options.precision = &precision;
  step_options.schedule = &schedule;
  muster::TrainStep step(trained.model, trained.optimizer, step_options);
  for (const auto& batch : windows.steps(options.steps)) {
    const auto loss =
        step(batch, [&] { return next_token_loss(forward(batch.tokens), batch.targets); });
    metrics.mean("loss", loss, static_cast<double>(batch.size()));
    if (!batch.last)
      continue;
    const int64_t done = windows.position().step;
    const auto line = metrics.write_every(options.log_every, done);
    if (line && ctx.is_main())
      std::cerr << "step " << done << "/" << options.steps << "  loss " << (*line)["loss"] << "\n";
    if (done == options.steps)
      checkpoints.save(done);
    else if (checkpoints.save_or_stop(done))
      return false;  // SIGTERM, a time limit: --resume goes on
  }
  return true;
}

// Rank 0 writes the adapter, and the model with it where asked.
void save(const Options& options, muster::Context& ctx, Gpt& net) {
  const auto& group = ctx.process_group();
  const std::string folder = ctx.run_dir(options.run_dir) + "/adapter";
  save_adapter(net, folder, options.weights, options.lora, group);
  if (ctx.is_main())
    std::cerr << "adapter: " << folder << "\n";
  if (options.merged.empty())
    return;
  merge_lora(*net);
  const auto is_weight = [](const std::string& name) {
    return !is_adapter(name);
  };
  muster::save_weights(*net, options.merged, {.names = gpt2_names(), .only = is_weight}, group);
}

// Goes on from the prompt.
void write_more(const Options& options, muster::Context& ctx, Gpt& net) {
  ctx.seed_all(options.seed);
  net->eval();
  const auto prompt = torch::tensor(options.prompt).to(ctx.device());
  const auto tokens = sample(net, prompt, options.sample, options.temperature).cpu();
  const auto* begin = tokens.const_data_ptr<int64_t>();
  std::cout << muster::join(std::span(begin, begin + tokens.numel()), ",") << std::endl;
}

// The model is whole on every rank.
void finish(const Options& options, muster::Context& ctx, Gpt& net) {
  save(options, ctx, net);
  if (!options.prompt.empty() && ctx.is_main())
    write_more(options, ctx, net);
}

// Before anything is trained. Throws: invalid_argument.
void check_prompt(const Options& options, int64_t vocabulary) {
  for (const int64_t token : options.prompt)
    if (token < 0 || token >= vocabulary)
      throw muster::Error(muster::ErrorCode::invalid_argument,
                          muster::cat("--prompt: expected tokens from 0 to ",
                                      vocabulary - 1,
                                      ", got ",
                                      token,
                                      "; take those of the model's tokenizer"));
}

void finetune(const Options& options, muster::Context& ctx) {
  auto& group = ctx.process_group();
  Gpt net = load_gpt2(options.weights, options.heads, group);
  check_prompt(options, net->options.vocabulary);
  BaseModel base(net, options.lora);
  ctx.seed_all(options.seed);
  freeze(*net);
  for (const auto& block : *net->blocks)
    add_lora(*block->as<GptBlock>(), options.lora);
  if (!options.adapter.empty())
    load_adapter(net, options.adapter, group);
  torch::manual_seed(ctx.seed(options.seed));  // from here on each rank drops out other places
  if (options.steps == 0) {
    net->to(ctx.device());
    return finish(options, ctx, net);
  }

  const auto adamw = torch::optim::AdamWOptions(options.lr).weight_decay(0);
  if (options.shard == "full") {
    muster::FullySharded sharded(group);
    auto model = sharded.wrap(ShardedGpt(net, sharded, ctx.device()));
    AdamW optimizer(sharded.parameters(), adamw);
    const auto clip = [&] {
      return sharded.clip_grad_norm(1.0);
    };
    const Trained trained{.model = model.module(),
                          .adapters = adapters_of(sharded.pieces(*net)),
                          .optimizer = optimizer,
                          .step = {.clip = clip, .group = group}};
    if (!train(options, ctx, base, trained, [&](const auto& tokens) { return model(tokens); }))
      return;
    const auto whole = sharded.whole_parameters();
    finish(options, ctx, net);
  } else {
    net->to(ctx.device());
    AdamW optimizer(trained_parameters(*net), adamw);
    muster::DistributedDataParallel model(net, group);
    const Trained trained{.model = model,
                          .adapters = adapters_of(muster::whole_pieces(*net)),
                          .optimizer = optimizer,
                          .step = {.clip_norm = 1.0}};
    if (train(options, ctx, base, trained, [&](const auto& tokens) { return model(tokens); }))
      finish(options, ctx, net);
  }
}

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  return muster::run(argc, argv, [&](muster::Context& ctx) { finetune(options, ctx); });
}

// A character-level GPT, trained data-parallel on a text; at the end it writes some more of it.
//
//   gpt                                                     on every device: the text in data/, about a
//   minute muster run -n 2 gpt --steps 2000 --prompt "ROMEO:"      two ranks gpt --run-dir runs/gpt --steps
//   4000 --resume            goes on from the last checkpoint there gpt --text my.txt --layers 6 --heads 6
//   --width 384 --context 256 --batch 64 --lr 1e-3 --steps 5000   for GPUs
//
// The model is in gpt.h, the text in text.h, the command line in options.h. On CPUs the same seed and number
// of ranks give the same numbers, bit for bit.
#include <muster/muster.h>
#include <torch/torch.h>

#include <filesystem>
#include <iostream>
#include <numbers>

#include "gpt.h"
#include "options.h"
#include "text.h"

// Matrices decay; biases and the norms' scales do not.
torch::optim::AdamW make_optimizer(Gpt& net, const Options& options) {
  std::vector<torch::Tensor> matrices;
  std::vector<torch::Tensor> others;
  for (const auto& parameter : net->parameters())
    (parameter.dim() < 2 ? others : matrices).push_back(parameter);
  const auto adamw = torch::optim::AdamWOptions(options.lr).betas({0.9, 0.99});
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<torch::optim::AdamWOptions>(adamw));
  groups.emplace_back(others, std::make_unique<torch::optim::AdamWOptions>(adamw));
  static_cast<torch::optim::AdamWOptions&>(groups[0].options()).weight_decay(options.weight_decay);
  static_cast<torch::optim::AdamWOptions&>(groups[1].options()).weight_decay(0);
  return torch::optim::AdamW(groups, adamw);
}

// Rises evenly in the warm-up, then falls as half a cosine, to a tenth.
double learning_rate(const Options& options, int64_t step) {
  if (step < options.warmup)
    return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup);
  const double part = static_cast<double>(step - options.warmup) /
                      static_cast<double>(std::max<int64_t>(options.steps - options.warmup, 1));
  return options.lr * (0.55 + 0.45 * std::cos(std::numbers::pi * part));
}

// In nats a character, over windows spread evenly through the text, which the ranks share out: the same
// windows whatever the number of ranks.
double mean_loss(Gpt& net, const torch::Tensor& text, int64_t batch, muster::Context& ctx) {
  const torch::NoGradGuard no_grad;
  const int64_t windows = std::min<int64_t>((text.size(0) - 1) / net->options.context, 1024);
  const int64_t apart = (text.size(0) - 1) / windows;
  auto sums = torch::zeros({2}, torch::device(ctx.device()).dtype(torch::kDouble));
  for (int64_t first = ctx.rank() * batch; first < windows; first += ctx.world_size() * batch) {
    const auto starts = torch::arange(first, std::min(first + batch, windows)) * apart;
    const auto [tokens, targets] = windows_at(text, starts, net->options.context);
    sums[0] += next_token_loss(net(tokens), targets) * starts.size(0);
    sums[1] += starts.size(0);
  }
  ctx.process_group().all_reduce(sums);
  return (sums[0] / sums[1]).item<double>();
}

void train(const Options& options, const Text& text, muster::Context& ctx) {
  const std::string run_dir = options.run_dir.empty() ? ctx.run_dir() : options.run_dir;
  if (run_dir.empty())
    throw std::invalid_argument("--run-dir: expected a folder, got none: this launcher gives none");
  if (ctx.is_main()) std::filesystem::create_directories(run_dir);
  const auto train_text = text.train().to(ctx.device());
  const auto validation_text = text.validation().to(ctx.device());

  torch::manual_seed(options.seed);
  Gpt net(options.model);
  net->to(ctx.device());
  auto optimizer = make_optimizer(net, options);
  muster::TrainingPosition position;
  if (options.resume) {
    const auto loaded =
        muster::load_latest_checkpoint(run_dir + "/checkpoints", {*net, &optimizer}, ctx.process_group());
    if (loaded) position = loaded->position;
    if (loaded && loaded->user.at("alphabet") != text.alphabet())
      throw std::invalid_argument("--resume: expected the characters of the text of " + loaded->path +
                                  ", got others; give that --text, or another --run-dir");
    const auto other = loaded ? muster::describe_other_data(*loaded, train_text.size(0)) : "";
    if (ctx.is_main() && !other.empty()) std::cerr << "resume: " << other << "\n";
    if (ctx.is_main())
      std::cerr << "resume: " << (loaded ? loaded->path : "no checkpoint yet in " + run_dir) << "\n";
  }

  position.dataset_size = train_text.size(0);
  muster::DistributedDataParallel model(net, ctx.process_group());
  const int64_t batch = ctx.batch_size(options.batch);
  auto windows_of_all = torch::full({1}, batch, torch::device(ctx.device()).dtype(torch::kLong));
  ctx.process_group().all_reduce(windows_of_all);
  const auto global_batch = windows_of_all.item<int64_t>();
  const double weight = static_cast<double>(batch * ctx.world_size()) / static_cast<double>(global_batch);
  muster::MetricsWriter metrics(ctx.is_main() ? run_dir + "/metrics.jsonl" : "");
  if (const auto moved = metrics.continue_after(position.step); moved > 0)
    std::cerr << "metrics: " << moved << " lines of later steps are in metrics.jsonl.replaced now\n";
  double validation_loss = mean_loss(net, validation_text, batch, ctx);
  std::string saved = "(nothing left to train)";

  while (position.step < options.steps) {
    const int64_t until =
        std::min(options.steps, (position.step / options.eval_every + 1) * options.eval_every);
    muster::Progress progress(muster::cat("step ", until, "/", options.steps),
                              (until - position.step) * global_batch, ctx.is_main());
    for (; position.step < until; ++position.step) {
      const auto starts =
          random_starts(train_text, options.model.context, batch, options.seed, ctx.rank(), position.step);
      const auto [tokens, targets] = windows_at(train_text, starts, options.model.context);
      const auto loss = next_token_loss(model(tokens), targets);
      (loss * weight).backward();
      torch::nn::utils::clip_grad_norm_(net->parameters(), options.clip);
      for (auto& group : optimizer.param_groups())
        group.options().set_lr(learning_rate(options, position.step));
      optimizer.step();
      optimizer.zero_grad();
      const auto loss_here = loss.item<double>();
      if (!options.allow_nan) muster::check_loss(loss_here, position.step + 1);
      progress.update(global_batch, loss_here);
    }
    const double tokens_per_second =
        progress.samples_per_second() * static_cast<double>(options.model.context);
    progress.finish();
    validation_loss = mean_loss(net, validation_text, batch, ctx);
    if (ctx.is_main())
      std::cerr << muster::cat("validation loss ", validation_loss, "  ", std::llround(tokens_per_second),
                               " tokens/s\n");
    metrics.write({{"step", position.step},
                   {"loss", progress.mean_loss()},
                   {"validation_loss", validation_loss},
                   {"tokens_per_second", tokens_per_second}});
    saved = muster::save_checkpoint(
        {.directory = run_dir + "/checkpoints", .user = {{"alphabet", text.alphabet()}}}, {*net, &optimizer},
        position, ctx.process_group());
  }
  if (!ctx.is_main()) return;
  std::cerr << "metrics:    " << run_dir << "/metrics.jsonl\ncheckpoint: " << saved << "\n";
  const auto prompt = text.encode(options.prompt).to(torch::kLong).to(ctx.device());
  torch::manual_seed(options.seed);
  if (options.sample > 0)
    std::cout << text.decode(sample(net, prompt, options.sample, options.temperature).cpu()) << "\n";
  std::cout << muster::to_json_line({{"validation_loss", validation_loss}}) << std::endl;
}

int main(int argc, char** argv) {
  Options options = parse_options(argc, argv);
  try {
    const Text text(options.text, options.model.context);
    options.model.vocabulary = text.vocabulary();
    checked(options.model);
    if (options.prompt.empty()) options.prompt = text.opening();
    text.encode(options.prompt);  // here, so that nothing is trained before a wrong one is found
    return muster::run(argc, argv, [&](muster::Context& ctx) { train(options, text, ctx); });
  } catch (const muster::Error& error) {
    muster::log(muster::LogLevel::error, error.message());
    return error.code() == muster::ErrorCode::io ? 1 : 2;
  }
}

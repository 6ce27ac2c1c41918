// A character-level GPT, trained data-parallel on a text; at the end it writes some more of it.
//
//   gpt                                           on every device: the text in data/, a minute
//   muster run -n 2 gpt --steps 2000 --prompt "ROMEO:"
//                                                 two ranks
//   gpt --shard full                              model and optimizer divided over the ranks
//   gpt --mesh dp=2,tp=2                          each layer divided over two ranks, twice
//   gpt --mesh dp=2,pp=2 --pipeline-schedule zero-bubble
//                                                 the layers in two stages, twice
//   gpt --run-dir runs/gpt --steps 4000 --resume  goes on from the last checkpoint there
//   gpt --text my.txt --layers 6 --heads 6 --width 384 --context 256 --batch 64 --lr 1e-3
//       --steps 5000
//
// The model is in gpt.h, the text in text.h, the command line in command_line.h, and each way of
// sharing the work over the ranks is a file in ways/. README.md tells them apart. On CPUs the same
// seed and number of ranks give the same numbers, bit for bit.
#include <muster/muster.h>
#include <torch/torch.h>

#include <iostream>

#include "command_line.h"
#include "gpt.h"
#include "options.h"
#include "text.h"
#include "ways.h"

// Rises evenly in the warm-up, then falls as half a cosine, to a tenth.
muster::Rate learning_rate(const Options& options) {
  const int64_t warmup = std::min(options.warmup, options.steps - 1);
  return muster::rate::cosine(
      {.steps = options.steps,
       .warmup = warmup,
       .warmup_from = 1.0 / static_cast<double>(std::max<int64_t>(warmup, 1)),
       .final_fraction = 0.1});
}

void train(const Options& options, const Text& text, muster::Context& ctx) {
  const std::string run_dir = ctx.run_dir(options.run_dir);
  ctx.seed_all(options.seed);
  Gpt net(options.model);
  const auto way = make_way(net, options, ctx);
  muster::Precision precision(ctx.device(), options.precision);
  muster::Schedule schedule(way->optimizer(), learning_rate(options));
  const Windows everywhere(text.train(), options.model.context);
  const auto order = muster::pseudo_shuffled(everywhere.size());
  auto windows = ctx.loader(everywhere,
                            ctx.sampler(order, way->replicas(), {.seed = options.seed}),
                            {.batch_size = options.batch,
                             .accumulate = options.accumulate,
                             .drop_last = options.pp > 1});  // a pipeline's batches are alike
  auto held_out = ctx.loader(Windows(text.validation(), options.model.context, 1024),
                             {.batch_size = options.batch},
                             {.shuffle = false, .pad = false});
  muster::Metrics metrics(ctx, {.folder = run_dir});

  muster::Checkpoints checkpoints(ctx,
                                  {.folder = run_dir + "/checkpoints", .resume = options.resume});
  way->add_to(checkpoints);
  checkpoints.add("schedule", schedule).add("precision", precision);
  checkpoints.add("windows", windows).add("text", text).add("metrics", metrics);
  checkpoints.restore();
  metrics.continue_after(checkpoints.step());

  way->begin(
      {.precision = &precision, .schedule = &schedule, .on_nonfinite = options.on_nonfinite()},
      checkpoints.step());
  const auto validation_loss = [&] {
    return muster::evaluate(ctx, net, held_out, [](Gpt& net, const auto& batch) {
      return next_token_loss(net(batch.tokens), batch.targets);
    });
  };

  while (windows.position().step < options.steps) {
    const int64_t begin = windows.position().step;
    const int64_t until =
        std::min(options.steps, (begin / options.eval_every + 1) * options.eval_every);
    const int64_t of_all = options.batch * way->replicas().size();
    muster::Progress progress(muster::cat("step ", until, "/", options.steps),
                              (until - begin) * options.accumulate * of_all,
                              ctx.is_main());
    for (const auto& batch : windows.steps(until)) {
      const auto loss = way->step(batch);
      metrics.mean("loss", loss, static_cast<double>(batch.size()));
      progress.update(of_all, loss);
      if (batch.last && ctx.should_stop())
        break;  // SIGTERM, SIGUSR1, Ctrl-C, a time limit
    }
    progress.finish();
    if (const auto whole = way->whole_model(); !ctx.stops()) {
      metrics.write(until,
                    {{"validation_loss", validation_loss()},
                     {"lr", schedule.lr()},
                     {"tokens_per_second",
                      progress.samples_per_second() * static_cast<double>(options.model.context)}});
    }
    checkpoints.save(windows.position().step);
    if (ctx.stops())
      return;
  }
  const auto whole = way->whole_model();
  const double loss = validation_loss();
  if (!ctx.is_main())
    return;
  std::cerr << "metrics:    " << run_dir << "/metrics.jsonl\ncheckpoint: " << checkpoints.path()
            << "\n";
  const auto prompt = text.encode(options.prompt).to(torch::kLong).to(ctx.device());
  ctx.seed_all(options.seed);
  if (options.sample > 0)
    std::cout << text.decode(sample(net, prompt, options.sample, options.temperature).cpu())
              << "\n";
  std::cout << muster::to_json_line({{"validation_loss", loss}}) << std::endl;
}

int main(int argc, char** argv) {
  Options options = parse_options(argc, argv);
  try {
    const Text text(options.text, options.model.context);
    options.model.vocabulary = text.vocabulary();
    checked(options.model);
    if (options.prompt.empty())
      options.prompt = text.opening();
    text.encode(options.prompt);  // here, so that nothing is trained before a wrong one is found
    muster::RunOptions run;
    if (!options.mesh.empty())
      run.mesh = {{"dp", options.dp}, {"pp", options.pp}, {"tp", options.tp}};
    return muster::run(run, argc, argv, [&](muster::Context& ctx) { train(options, text, ctx); });
  } catch (const muster::Error& error) {
    muster::log(muster::LogLevel::error, error.message());
    return error.code() == muster::ErrorCode::io ? 1 : 2;
  }
}

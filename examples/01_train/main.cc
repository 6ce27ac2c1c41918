// Data-parallel training from start to end: read the data, train on every rank, save, resume,
// measure. The spine of a training program; the model is in model.h, the command line in options.h.
#include <muster/muster.h>
#include <torch/torch.h>

#include <iostream>

#include "model.h"
#include "options.h"

void train(const Options& options, muster::Context& ctx) {
  const auto data = options.mnist.empty() ? muster::read_digits(options.digits)
                                          : muster::read_mnist(options.mnist);
  const std::string run_dir = ctx.run_dir(options.run_dir);

  torch::manual_seed(ctx.seed(options.seed));  // DDP sends rank 0's weights to all
  Net net(data.train.features().size(2), data.train.features().size(3));
  net->to(ctx.device());
  muster::optim::SGD optimizer(muster::distinct_parameters(*net),
                               torch::optim::SGDOptions(options.lr).momentum(0.9));
  muster::Precision precision(ctx.device(), options.precision);
  auto digits = ctx.loader(data.train,
                           {.batch_size = options.batch_size, .accumulate = options.accumulate},
                           {.seed = options.seed});
  auto held_out = ctx.loader(data.test, {.batch_size = 64}, {.shuffle = false, .pad = false});
  muster::Metrics metrics(ctx, {.folder = run_dir});

  muster::Checkpoints checkpoints(ctx,
                                  {.folder = run_dir + "/checkpoints", .resume = options.resume});
  checkpoints.add("model", net).add("optimizer", optimizer).add("precision", precision);
  checkpoints.add("digits", digits).add("metrics", metrics);
  checkpoints.restore();
  metrics.continue_after(checkpoints.step());

  muster::DistributedDataParallel model(net, ctx.process_group());
  muster::TrainStep step(
      model, optimizer, {.precision = &precision, .on_nonfinite = options.on_nonfinite()});
  const auto accuracy = [&] {
    return muster::evaluate(ctx, net, held_out, [](Net& net, const auto& batch) {
      return net(batch.features).argmax(1).eq(batch.labels);
    });
  };

  while (digits.epoch() < options.epochs) {
    muster::Progress progress(muster::cat("epoch ", digits.epoch() + 1, "/", options.epochs),
                              digits.num_samples() * ctx.world_size(),
                              ctx.is_main());
    for (const auto& batch : digits) {
      const auto loss = step(
          batch, [&] { return torch::cross_entropy_loss(model(batch.features), batch.labels); });
      metrics.mean("loss", loss, static_cast<double>(batch.size()));
      progress.update(batch.size() * ctx.world_size(), loss);
      const bool within_epoch = batch.last && digits.position().consumed > 0;
      if (within_epoch && checkpoints.save_or_stop(digits.position().step))
        return;  // Ctrl-C, SIGTERM
    }
    progress.finish();
    metrics.write(digits.position().step,
                  {{"epoch", digits.epoch()},
                   {"samples_per_second", progress.samples_per_second()},
                   {"test_accuracy", accuracy()}});
    checkpoints.save(digits.position().step);
    if (digits.epoch() < options.epochs && ctx.should_stop())
      return;
  }
  const double last = accuracy();
  if (!ctx.is_main())
    return;
  std::cerr << "metrics:    " << run_dir << "/metrics.jsonl\ncheckpoint: " << checkpoints.path()
            << "\n";
  std::cout << muster::to_json_line({{"test_accuracy", last}}) << std::endl;
}

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  return muster::run(argc, argv, [&](muster::Context& ctx) { train(options, ctx); });
}

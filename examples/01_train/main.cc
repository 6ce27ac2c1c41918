// Data-parallel training from start to end: read the data, train on every rank, save, resume, measure.
// The spine of a training program; the model is in model.h, the command line in options.h.
#include <muster/muster.h>
#include <torch/torch.h>

#include <filesystem>
#include <iostream>

#include "model.h"
#include "options.h"

// The part of the test set that is classified rightly. Each rank takes every world_size-th batch.
double test_accuracy(Net& model, const muster::TensorDataset& test, muster::Context& ctx) {
  const torch::NoGradGuard no_grad;
  model->eval();
  auto counts = torch::zeros({2}, ctx.device());
  int64_t index = 0;
  for (const auto& batch : muster::DataLoader(test, {.batch_size = 64, .device = ctx.device()})) {
    if (index++ % ctx.world_size() != ctx.rank()) continue;
    counts[0] += model(batch.features).argmax(1).eq(batch.labels).sum();
    counts[1] += batch.size();
  }
  ctx.process_group().all_reduce(counts);
  model->train();
  return (counts[0] / counts[1]).item<double>();
}

void train(const Options& options, muster::Context& ctx) {
  const auto data =
      options.mnist.empty() ? muster::read_digits(options.digits) : muster::read_mnist(options.mnist);
  const std::string run_dir = options.run_dir.empty() ? ctx.run_dir() : options.run_dir;
  if (run_dir.empty())
    throw std::invalid_argument("--run-dir: expected a folder, got none: this launcher gives none");
  if (ctx.is_main()) std::filesystem::create_directories(run_dir);

  torch::manual_seed(options.seed);
  Net net(data.train.features().size(2), data.train.features().size(3));
  net->to(ctx.device());
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(options.lr).momentum(0.9));
  muster::TrainingPosition position;
  if (options.resume) {
    const auto loaded =
        muster::load_latest_checkpoint(run_dir + "/checkpoints", {*net, &optimizer}, ctx.process_group());
    if (loaded) position = loaded->position;
    if (ctx.is_main())
      std::cerr << "resume: " << (loaded ? loaded->path : "no checkpoint yet in " + run_dir) << "\n";
    const auto other = loaded ? muster::describe_other_data(*loaded, data.train.size()) : "";
    if (ctx.is_main() && !other.empty())
      std::cerr << "resume: " << other << ": epochs have other samples now\n";
  }

  muster::DistributedDataParallel model(net, ctx.process_group());
  auto sampler = ctx.sampler(data.train.size(), {.seed = options.seed});
  muster::DataLoader loader(data.train, sampler,
                            {.batch_size = ctx.batch_size(options.batch_size),
                             .accumulate = options.accumulate,
                             .device = ctx.device()});
  muster::MetricsWriter metrics(ctx.is_main() ? run_dir + "/metrics.jsonl" : "");
  if (const auto moved = metrics.continue_after(position.step); moved > 0)
    std::cerr << "metrics: " << moved << " lines of later steps are in metrics.jsonl.replaced now\n";
  double accuracy = test_accuracy(net, data.test, ctx);
  std::string saved = "(nothing left to train)";

  for (; position.epoch < options.epochs; ++position.epoch) {
    sampler.set_epoch(position.epoch);
    muster::Progress progress(muster::cat("epoch ", position.epoch + 1, "/", options.epochs),
                              sampler.num_samples() * ctx.world_size(), ctx.is_main());
    for (const auto& batch : loader) {
      const auto guard = model.no_sync_if(!batch.last);
      const auto loss = torch::cross_entropy_loss(model(batch.features), batch.labels);
      (loss * batch.weight).backward();
      const auto loss_here = loss.item<double>();
      if (!options.allow_nan) muster::check_loss(loss_here, position.step + 1);
      progress.update(batch.size() * ctx.world_size(), loss_here);
      if (!batch.last) continue;
      optimizer.step();
      optimizer.zero_grad();
      ++position.step;
    }
    accuracy = test_accuracy(net, data.test, ctx);
    progress.finish();
    metrics.write({{"epoch", position.epoch + 1},
                   {"step", position.step},
                   {"loss", progress.mean_loss()},
                   {"samples_per_second", progress.samples_per_second()},
                   {"test_accuracy", accuracy}});
    saved = muster::save_checkpoint(
        {.directory = run_dir + "/checkpoints"}, {*net, &optimizer},
        {.step = position.step, .epoch = position.epoch + 1, .dataset_size = data.train.size()},
        ctx.process_group());
  }
  if (!ctx.is_main()) return;
  std::cerr << "metrics:    " << run_dir << "/metrics.jsonl\ncheckpoint: " << saved << "\n";
  std::cout << muster::to_json_line({{"test_accuracy", accuracy}}) << std::endl;
}

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  return muster::run(argc, argv, [&](muster::Context& ctx) { train(options, ctx); });
}

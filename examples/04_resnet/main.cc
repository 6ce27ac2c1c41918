// A ResNet on pictures: worker threads that augment, bf16, BatchNorm over all ranks, a cosine with
// warm-up, averaged weights, and going on in the middle of an epoch, with another number of ranks
// too.
//
//   muster run resnet    the digits as 32×32 pictures, half a minute
//   muster run resnet --cifar cifar-10-batches-bin --depth 3 --width 16 --epochs 150
//                     --batch-size 128
//
//   muster run resnet --weights resnet18.pth --lr 0.01 --epochs 3
//                        begins with a trained model: torchvision's ResNet-18 or 34, or a ViT
//
// The second is ResNet-20. The models are in resnet.h, torchvision.h and vit.h, the pictures in
// pictures.h, the command line in options.h.
#include <muster/muster.h>
#include <torch/torch.h>

#include <iostream>

#include "options.h"
#include "pictures.h"
#include "resnet.h"
#include "torchvision.h"
#include "vit.h"

template <class Net>
void train(const Options& options, muster::Context& ctx, Net net, const Seen& seen) {
  const std::string run_dir = ctx.run_dir(options.run_dir);
  if (options.batch_size % ctx.world_size() != 0)
    throw std::invalid_argument(muster::cat("--batch-size: expected a multiple of ",
                                            ctx.world_size(),
                                            " ranks, got ",
                                            options.batch_size,
                                            "; give another, or other ranks"));
  const bool digits = options.cifar.empty();
  if (digits && ctx.is_main())
    digits_as_cifar(options.digits, run_dir + "/digits");
  ctx.process_group().barrier();
  const auto data =
      muster::read_cifar10(digits ? run_dir + "/digits" : options.cifar, {.bytes = true});
  auto pictures = ctx.loader(Pictures(data.train, seen, /*augment=*/true, /*mirror=*/!digits),
                             {.batch_size = options.batch_size / ctx.world_size(),
                              .accumulate = options.accumulate,
                              .workers = options.workers},
                             {.seed = options.seed});
  auto held_out = ctx.loader(Pictures(data.test, seen, /*augment=*/false, /*mirror=*/false),
                             {.batch_size = 64, .workers = options.workers},
                             {.shuffle = false, .pad = false});
  // Of all ranks together the same batches whatever their number: so a step is the same part of the
  // training.
  const int64_t steps_per_epoch =
      (pictures.num_batches() + options.accumulate - 1) / options.accumulate;
  const int64_t steps = options.epochs * steps_per_epoch;

  net->to(ctx.device());
  muster::convert_sync_batch_norm(*net, ctx.process_group());
  muster::DistributedDataParallel model(net, ctx.process_group());
  muster::optim::SGD optimizer(
      muster::distinct_parameters(*net),
      torch::optim::SGDOptions(options.lr).momentum(0.9).weight_decay(5e-4).nesterov(true));
  muster::Schedule schedule(optimizer,
                            muster::rate::cosine({.steps = steps, .warmup = steps / 10}));
  muster::Precision precision(ctx.device(), options.precision);
  muster::Ema ema(*net, options.ema, {.warmup = true});
  muster::Metrics metrics(ctx, {.folder = run_dir, .tensorboard = true});

  muster::Checkpoints checkpoints(
      ctx,
      {.folder = run_dir + "/checkpoints", .every = steps_per_epoch / 2, .resume = options.resume});
  checkpoints.add("model", net)
      .add("optimizer", optimizer)
      .add("schedule", schedule)
      .add("precision", precision);
  checkpoints.add("ema", ema).add("pictures", pictures).add("metrics", metrics);
  checkpoints.restore();
  metrics.continue_after(checkpoints.step());

  muster::TrainStep step(
      model,
      optimizer,
      {.precision = &precision, .clip_norm = 5.0, .schedule = &schedule, .ema = &ema});
  const auto accuracy = [&] {
    const auto averages = ema.swap();
    return muster::evaluate(ctx, net, held_out, [](Net& net, const auto& batch) {
      return net(batch.pixels).argmax(1).eq(batch.label);
    });
  };

  for (const auto& batch : pictures.steps(steps)) {
    const auto loss =
        step(batch, [&] { return torch::cross_entropy_loss(model(batch.pixels), batch.label); });
    metrics.mean("loss", loss, static_cast<double>(batch.size()));
    if (!batch.last)
      continue;
    const int64_t done = pictures.position().step;
    if (done % steps_per_epoch == 0) {
      const double score = accuracy();
      const auto written = metrics.write(done, {{"lr", schedule.lr()}, {"test_accuracy", score}});
      if (ctx.is_main())
        std::cerr << "step " << done << "/" << steps << "  loss " << written["loss"]
                  << "  test accuracy " << score << "\n";
    }
    if (done == steps)
      checkpoints.save(done);
    else if (checkpoints.save_or_stop(done))
      return;  // SIGTERM, a time limit: --resume goes on
  }
  const double last = accuracy();
  if (ctx.is_main())
    std::cout << muster::to_json_line({{"test_accuracy", last}}) << std::endl;
}

void train(const Options& options, muster::Context& ctx) {
  auto& group = ctx.process_group();
  torch::manual_seed(ctx.seed(options.seed));  // DDP sends rank 0's weights to all
  if (options.weights.empty())
    return train(options, ctx, ResNet(10, options.depth, options.width), {});
  if (has_vit(muster::weight_shapes(options.weights, vit_names(), group))) {
    Vit net = load_vit(options.weights, 10, group);
    train(options, ctx, net, {.side = net->options.side, .deviation = {0.5, 0.5, 0.5}});
  } else {
    TorchvisionResNet net = load_torchvision_resnet(options.weights, 10, group);
    train(options,
          ctx,
          net,
          {.side = options.side > 0 ? options.side : 224,
           .mean = muster::transform::kImageNetMean,
           .deviation = muster::transform::kImageNetDeviation});
  }
}

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  return muster::run(argc, argv, [&](muster::Context& ctx) { train(options, ctx); });
}

// The example's command line.
#pragma once

#include <muster/base/strings.h>

#include <CLI/CLI.hpp>
#include <string>

struct Options {
  std::string cifar;
  std::string digits = DIGITS_FILE;
  std::string weights;
  int64_t side = 0;
  int64_t depth = 1;
  int64_t width = 8;
  int64_t epochs = 12;
  int64_t batch_size = 64;
  int64_t accumulate = 1;
  int workers = 1;
  double lr = 0.1;
  double ema = 0.98;
  int64_t seed = 1;
  std::string precision = "bf16";
  bool resume = false;
  std::string run_dir;
};

// Prints what is wrong (or the help) and ends the process when the arguments are not usable.
inline Options parse_options(int argc, char** argv) {
  Options o;
  CLI::App app{"Trains a ResNet on pictures in CIFAR-10's format, on every device of the machine."};
  const auto number = [&app](const char* name, auto& value, int64_t least, const char* what) {
    app.add_option(name, value, what)
        ->capture_default_str()
        ->check(CLI::Range(least, int64_t{1000000}));
  };
  app.add_option(
      "--cifar",
      o.cifar,
      "the folder cifar-10-batches-bin (default: the digits of data/, enlarged to 32x32)");
  app.add_option("--digits", o.digits, "the digits: digits.csv.gz")->capture_default_str();
  app.add_option("--weights",
                 o.weights,
                 "begin with a trained model: torchvision's ResNet-18 or 34 (.pth or safetensors), "
                 "or a ViT as model hubs have it");
  number("--side",
         o.side,
         0,
         "of the pictures that a trained ResNet sees; 0: 224, as those that it was trained on");
  number("--depth", o.depth, 1, "residual blocks in each of three stages; 3 is ResNet-20");
  number("--width", o.width, 1, "channels of the first stage; ResNet-20 has 16");
  number("--epochs", o.epochs, 1, "passes over the data");
  number("--batch-size",
         o.batch_size,
         1,
         "samples of a batch, of all ranks together; they must divide it");
  number("--accumulate", o.accumulate, 1, "batches a step");
  number("--workers", o.workers, 0, "threads of each rank that read and cut pictures");
  app.add_option("--lr", o.lr, "highest learning rate; it falls as half a cosine")
      ->capture_default_str()
      ->check(CLI::Range(1e-9, 1000.0));
  app.add_option("--ema", o.ema, "decay of the averaged weights, which are measured and kept")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  number("--seed", o.seed, 0, "of weights, order and pictures");
  app.add_option(
         "--precision", o.precision, "of the forward: fp32, bf16, or fp16 with a loss scale")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_flag("--resume", o.resume, "resume from the newest checkpoint in the run directory");
  app.add_option("--run-dir",
                 o.run_dir,
                 "where metrics and checkpoints go (default: the launcher's run directory)");
  try {
    app.parse(argc, argv);
    for (const char* name : {"--depth", "--width"})
      if (!o.weights.empty() && app.count(name) > 0)
        throw CLI::ValidationError(
            muster::cat(name, ": expected none with --weights, which decide it; leave one out"));
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  return o;
}

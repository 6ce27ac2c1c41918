// The example's command line.
#pragma once

#include <muster/train/step.h>

#include <CLI/CLI.hpp>
#include <string>

struct Options {
  int64_t epochs = 20;
  int64_t batch_size = 32;
  double lr = 0.05;
  int64_t seed = 1;
  int64_t accumulate = 1;
  std::string precision = "fp32";
  std::string digits = DIGITS_FILE;
  std::string mnist;
  bool resume = false;
  bool allow_nan = false;
  std::string run_dir;

  muster::OnNonfinite on_nonfinite() const {
    return allow_nan ? muster::OnNonfinite::ignore : muster::OnNonfinite::stop;
  }
};

// Prints what is wrong (or the help) and ends the process when the arguments are not usable.
inline Options parse_options(int argc, char** argv) {
  Options o;
  CLI::App app{
      "Trains a small convolutional network on handwritten digits, on every device of the "
      "machine."};
  app.add_option("--epochs", o.epochs, "passes over the data")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_option("--batch-size", o.batch_size, "samples a step, per rank")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_option("--lr", o.lr, "learning rate")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--seed", o.seed, "of weights and order")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--accumulate", o.accumulate, "batches a step")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_option(
         "--precision", o.precision, "of the forward: fp32, bf16, or fp16 with a loss scale")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_option("--digits", o.digits, "the data: digits.csv.gz")->capture_default_str();
  app.add_option("--mnist",
                 o.mnist,
                 "a folder of MNIST-format IDX files (plain or .gz), instead of the digits");
  app.add_flag("--resume", o.resume, "resume from the newest checkpoint in the run directory");
  app.add_flag("--allow-nan", o.allow_nan, "keep training when gradients are not numbers");
  app.add_option("--run-dir",
                 o.run_dir,
                 "where metrics and checkpoints go (default: the launcher's run directory)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  return o;
}

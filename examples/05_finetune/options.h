// The example's command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "lora.h"

struct Options {
  std::string weights;
  int64_t heads = 0;
  std::string tokens;
  std::string adapter;
  std::string merged;
  LoraOptions lora;
  std::string shard = "none";
  int64_t context = 0;
  int64_t batch = 8;
  int64_t accumulate = 1;
  int64_t steps = 100;
  double lr = 1e-3;
  int64_t seed = 1;
  int64_t log_every = 10;
  int64_t save_every = 50;
  std::string precision = "fp32";
  std::vector<int64_t> prompt;
  int64_t sample = 20;
  double temperature = 0.8;
  bool resume = false;
  std::string run_dir;
};

// Prints what is wrong (or the help) and ends the process when the arguments are not usable.
inline Options parse_options(int argc, char** argv) {
  Options o;
  CLI::App app{"Fine-tunes a published GPT-2 by LoRA, on every device of the machine."};
  const auto number = [&app](const char* name, int64_t& value, int64_t least, const char* what) {
    app.add_option(name, value, what)
        ->capture_default_str()
        ->check(CLI::Range(least, int64_t{1000000}));
  };
  app.add_option("--weights", o.weights, "GPT-2's weights: a file, or a folder as hubs have it")
      ->required();
  number("--heads", o.heads, 0, "its attention heads; 0: one for every 64 of its width");
  app.add_option("--tokens", o.tokens, "a file of tokens (uint16) to train on");
  app.add_option("--adapter", o.adapter, "begin with this adapter: adapter_model.safetensors");
  app.add_option("--merged", o.merged, "write weights with the adapter in them, as this file");
  number("--rank", o.lora.rank, 1, "the adapters' rank");
  app.add_option("--alpha", o.lora.alpha, "what adapters give is multiplied by alpha / rank")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--dropout", o.lora.dropout, "of what adapters see")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--layers", o.lora.layers, "the layers of each block that get one")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::IsMember({"qkv", "mix", "up", "down"}));
  app.add_option("--shard", o.shard, "full: the model is divided over the ranks")
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "full"}));
  number("--context", o.context, 0, "tokens of a sample; 0: the model's most");
  number("--batch", o.batch, 1, "samples of a batch, of each rank");
  number("--accumulate", o.accumulate, 1, "batches a step");
  number("--steps", o.steps, 0, "steps in all");
  app.add_option("--lr", o.lr, "highest learning rate; it falls as half a cosine")
      ->capture_default_str()
      ->check(CLI::Range(1e-9, 1000.0));
  number("--seed", o.seed, 0, "of adapters and order");
  number("--log-every", o.log_every, 1, "steps between the lines of metrics.jsonl");
  number("--save-every", o.save_every, 1, "steps between checkpoints");
  app.add_option("--precision", o.precision, "of the forward")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--prompt", o.prompt, "tokens that it goes on from at the end: 464,2068")
      ->delimiter(',');
  number("--sample", o.sample, 1, "tokens that it then adds");
  app.add_option("--temperature", o.temperature, "below 1 it prefers the likely ones")
      ->capture_default_str()
      ->check(CLI::Range(1e-6, 1000.0));
  app.add_flag("--resume", o.resume, "resume from the newest checkpoint in the run directory");
  app.add_option("--run-dir",
                 o.run_dir,
                 "where metrics, checkpoints and the adapter go (default: the launcher's)");
  try {
    app.parse(argc, argv);
    if (o.steps > 0 && o.tokens.empty())
      throw CLI::ValidationError("--tokens: expected a file to train on, got none; or --steps 0");
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  return o;
}

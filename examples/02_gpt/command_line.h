// The example's command line.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>

#include "check_options.h"
#include "options.h"

// Prints what is wrong (or the help) and ends the process when the arguments are not usable.
inline Options parse_options(int argc, char** argv) {
  Options o;
  CLI::App app{
      "Trains a character-level GPT on a text, on every device of the machine, and writes some "
      "more."};
  const auto number = [&app](const char* name, int64_t& value, int64_t least, const char* what) {
    app.add_option(name, value, what)
        ->capture_default_str()
        ->check(CLI::Range(least, int64_t{1000000000}));
  };
  const auto real =
      [&app](const char* name, double& value, double least, double most, const char* what) {
        app.add_option(name, value, what)->capture_default_str()->check(CLI::Range(least, most));
      };
  app.add_option("--text", o.text, "a text file, plain or gzip; its last tenth validates")
      ->capture_default_str();
  number("--layers", o.model.layers, 1, "blocks of attention and two linear layers");
  number("--heads", o.model.heads, 1, "attention heads of a block; they share the width");
  number("--width", o.model.width, 1, "of a character's vector");
  number("--context", o.model.context, 1, "characters that are looked at");
  app.add_flag(
      "--tied", o.model.tied, "guess with the characters' vectors instead of weights of their own");
  number("--batch", o.batch, 1, "windows of text a step, per rank");
  number("--accumulate", o.accumulate, 1, "batches a step");
  number("--steps", o.steps, 1, "in all");
  real("--lr", o.lr, 1e-9, 1000, "learning rate, after the warm-up; it falls to a tenth");
  number("--warmup", o.warmup, 0, "steps in which the learning rate rises");
  real("--weight-decay", o.weight_decay, 0, 1000, "AdamW's, of matrices");
  real("--clip", o.clip, 1e-9, 1e9, "the largest norm of the gradients");
  number("--seed", o.seed, 0, "of weights, windows and sample");
  number("--eval-every", o.eval_every, 1, "steps from one validation and checkpoint to the next");
  number("--sample", o.sample, 0, "characters to write at the end");
  app.add_option(
      "--prompt", o.prompt, "what the sample begins with (default: the text's first line)");
  real("--temperature",
       o.temperature,
       0.01,
       100,
       "of the sample: below 1 it prefers what is likely");
  app.add_option(
         "--precision", o.precision, "of the forward: fp32, bf16, or fp16 with a loss scale")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_option("--shard",
                 o.shard,
                 "over the ranks: the optimizer's state (zero1), gradients too (zero2), parameters "
                 "too (full)")
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "zero1", "zero2", "full"}));
  number(
      "--local-sgd", o.local_sgd, 0, "steps that each rank takes alone between averages; 0: none");
  app.add_option("--mesh",
                 o.mesh,
                 "the ranks as dp=2,pp=2,tp=2: data parallel, stages of a pipeline, tensor "
                 "parallel; one may be -1");
  app.add_flag("--sequence",
               o.sequence,
               "ranks along tp share the tokens too, outside of the divided layers");
  app.add_option(
         "--pipeline-schedule", o.pipeline_schedule, "in which order stages do micro-batches")
      ->capture_default_str()
      ->check(CLI::IsMember({"gpipe", "1f1b", "interleaved", "zero-bubble"}));
  number("--micro-batches", o.micro_batches, 1, "of a batch in a pipeline");
  app.add_flag("--allow-nan", o.allow_nan, "keep training when gradients are not numbers");
  app.add_flag("--resume", o.resume, "resume from the newest checkpoint in the run directory");
  app.add_option("--run-dir",
                 o.run_dir,
                 "where metrics and checkpoints go (default: the launcher's run directory)");
  try {
    app.parse(argc, argv);
    read_mesh(o);
    check_ways(o);
    check_divided(o);
    if (o.pp > 1) {
      check_pipeline(o);
    } else {
      for (const char* name : {"--pipeline-schedule", "--micro-batches"})
        if (app.count(name) > 0)
          refuse(name,
                 "a --mesh with pp beside it",
                 o.mesh.empty() ? "none" : o.mesh,
                 "add --mesh pp=2");
    }
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  return o;
}

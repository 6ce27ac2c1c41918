// What the example's command line says.
#pragma once

#include <muster/train/step.h>

#include <string>

#include "gpt.h"

struct Options {
  std::string text = TEXT_FILE;
  GptOptions model = {};  // all but the vocabulary, which the text has
  int64_t batch = 16;
  int64_t accumulate = 1;
  int64_t steps = 400;
  double lr = 3e-3;
  int64_t warmup = 50;
  double weight_decay = 0.1;
  double clip = 1.0;
  int64_t seed = 1;
  int64_t eval_every = 100;
  int64_t sample = 400;
  std::string precision = "fp32";
  std::string prompt;
  double temperature = 0.8;
  bool resume = false;
  bool allow_nan = false;
  std::string run_dir;
  std::string shard = "none";
  int64_t local_sgd = 0;
  std::string mesh;
  int dp = 1, pp = 1, tp = 1;  // ranks along its axes
  bool sequence = false;
  std::string pipeline_schedule = "1f1b";
  int64_t micro_batches = 4;

  int stages_per_rank() const { return pipeline_schedule == "interleaved" ? 2 : 1; }
  bool divides_model() const { return pp > 1 || tp > 1; }
  muster::OnNonfinite on_nonfinite() const {
    return allow_nan ? muster::OnNonfinite::ignore : muster::OnNonfinite::stop;
  }
};

// A pipeline along the mesh's axis pp: each of its ranks has some of the blocks (../stage.h), and a
// batch goes through them in micro-batches. Data parallel along dp, tensor parallel along tp.
#pragma once

#include <cmath>

#include "../stage.h"
#include "way.h"

inline muster::PipelineSchedule schedule_of(const Options& options) {
  const int micro_batches = static_cast<int>(options.micro_batches);
  if (options.pipeline_schedule == "gpipe")
    return muster::gpipe(options.pp, micro_batches);
  if (options.pipeline_schedule == "interleaved")
    return muster::interleaved(options.pp, micro_batches, options.stages_per_rank());
  if (options.pipeline_schedule == "zero-bubble")
    return muster::zero_bubble(options.pp, micro_batches);
  return muster::one_f_one_b(options.pp, micro_batches);
}

class PipelineParallel : public Way {
 public:
  PipelineParallel(Gpt net, const Options& options, muster::Context& ctx, muster::Mesh mesh)
      : Way(mesh.group("dp")),
        all_ranks_(ctx.process_group()),
        net_(std::move(net)),
        options_(options),
        device_(ctx.device()),
        mesh_(std::move(mesh)),
        pipeline_(make_pipeline()),
        optimizer_(parameter_groups(pipeline_->parameters(), options), adamw(options)) {}

  torch::optim::Optimizer& optimizer() override { return optimizer_; }

  void add_to(muster::Checkpoints& checkpoints) override {
    const auto pieces = pipeline_->pieces();
    checkpoints.add("model", pieces).add("optimizer", optimizer_, pieces);
  }

  void begin(const muster::TrainStepOptions& options, int64_t /*steps_done*/) override {
    step_ = options;
  }

  // As TrainStep, but that backward is the pipeline's. Each batch of a step goes through the stages
  // in turn.
  torch::Tensor step(const TextBatch& batch) override {
    muster::Precision& precision = *step_.precision;
    const double scale = precision.scale_value() * static_cast<double>(batch.weight);
    const auto loss =
        pipeline_->step(batch.tokens, batch.targets, {.scale = scale, .reduce = batch.last});
    if (!batch.last)
      return loss.detach();
    precision.unscale(pipeline_->parameters(), all_ranks_);
    const bool is_finite = !precision.found_nonfinite(pipeline_->parameters());
    if (is_finite)
      take_step();
    if (precision.scales())
      precision.update();
    optimizer_.zero_grad();
    return loss.detach();
  }

  std::shared_ptr<void> whole_model() override {
    return whole_on_device(net_, pipeline_->gather_parameters(), device_);
  }

 private:
  void take_step() {
    const auto norm = pipeline_->clip_grad_norm(options_.clip, mesh_.group("tp")).item<double>();
    if (step_.on_nonfinite == muster::OnNonfinite::stop && !std::isfinite(norm))
      stop(muster::cat("the norm ", norm));
    optimizer_.step();
    for (muster::Schedule* schedule : step_.schedule)
      schedule->step();
  }

  [[noreturn]] static void stop(const std::string& got) {
    throw muster::Error(
        muster::ErrorCode::failed_precondition,
        muster::cat(
            "gpt: expected finite gradients, got ", got, "; lower --lr, or add --allow-nan"));
  }

  std::unique_ptr<muster::Pipeline> make_pipeline() {
    ParallelGpt model(net_, mesh_.group("tp"), ParallelGptOptions{.sequence = options_.sequence});
    const auto schedule = schedule_of(options_);
    std::vector<muster::PipelineStage> stages;
    torch::Tensor tied;
    for (int number = mesh_.rank("pp"); number < schedule.stages; number += schedule.ranks) {
      GptStage stage = on_device(GptStage(model, number, schedule.stages), device_);
      if (stage->tied_weight().defined())
        tied = stage->tied_weight();
      stages.emplace_back(stage);
      stages.back().forward = [this, stage](const torch::Tensor& x) mutable {
        return step_.precision->run([&] { return stage->forward(x); });
      };
    }
    auto pipeline = std::make_unique<muster::Pipeline>(
        stages,
        mesh_.group("pp"),
        muster::PipelineOptions{
            .schedule = schedule,
            .loss = [model](const auto& logits,
                            const auto& targets) mutable { return model->loss(logits, targets); },
            .share_loss = true});
    if (options_.model.tied)
      pipeline->tie(tied);
    if (options_.dp > 1)
      pipeline->average_over(replicas_);
    return pipeline;
  }

  muster::ProcessGroup all_ranks_;
  Gpt net_;  // in host memory
  const Options& options_;
  torch::Device device_;
  muster::Mesh mesh_;
  std::unique_ptr<muster::Pipeline> pipeline_;
  AdamW optimizer_;
  muster::TrainStepOptions step_;
};

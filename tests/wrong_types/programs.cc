// Programs with a wrong type each. A comment CASE begins one, and has the text that the compiler
// must give as the reason (wrong_types_test.py).
#include "muster/muster.h"

#include <torch/torch.h>

#include <memory>
#include <vector>

using namespace muster;  // NOLINT(google-build-using-namespace): as the programs of a test

struct Module : torch::nn::Module {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(2, 1));
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
};
TORCH_MODULE_IMPL(Net, Module);

struct NoForward : torch::nn::Module {};

struct Number {
  int value = 0;
};
struct Numbers : Dataset<Number> {
  int64_t size() const override { return 1; }
  Number get(int64_t /*index*/, Generator& /*rng*/) const override { return {}; }
};

struct Job {
  Context& ctx;
  Net net;
  torch::optim::SGD optimizer;
  Checkpoints checkpoints;
  TensorDataset tensors;
  std::vector<at::Tensor> list;
  DataLoader<TensorDataset> loader;
};

// CASE Checkpoints::add takes
void checkpoint_of_a_number(Job& job) {
  int step = 7;
  job.checkpoints.add("step", step);
}

// CASE Checkpoints::add takes
void checkpoint_of_a_wrapper(Job& job) {
  DistributedDataParallel model(job.net, job.ctx.process_group());
  job.checkpoints.add("model", model);
}

// CASE Checkpoints::add takes
void checkpoint_of_a_dataset(Job& job) {
  job.checkpoints.add("data", job.tensors);
}

// CASE Checkpoints::add takes
void checkpoint_of_a_temporary(Job& job) {
  job.checkpoints.add("data", DataLoader(job.tensors, {.batch_size = 2}));
}

// CASE Checkpoints::add_per_rank takes
void per_rank_without_a_state(Job& job) {
  job.checkpoints.add_per_rank("data", job.loader);
}

// CASE DistributedDataParallel takes a module holder
void wrapped_module_by_value(Job& job) {
  Module module;
  DistributedDataParallel model(module, job.ctx.process_group());
}

// CASE ProcessGroup
void wrapped_without_a_group(Job& job) {
  DistributedDataParallel model(job.net, job.ctx);
}

// CASE DistributedDataParallel takes a module holder
void wrapped_parameters(Job& job) {
  DistributedDataParallel model(job.net->parameters(), job.ctx.process_group());
}

// CASE has no member named ‘forward’
void wrapped_without_a_forward(Job& job) {
  DistributedDataParallel model(std::make_shared<NoForward>(), job.ctx.process_group());
  model(torch::rand({2, 2}));
}

// CASE candidate expects 1 argument, 2 provided
void forward_of_other_arguments(Job& job) {
  DistributedDataParallel model(job.net, job.ctx.process_group());
  model(torch::rand({2, 2}), 7);
}

// CASE a DataLoader takes a dataset (IsDataset)
void loader_of_a_list(Job& job) {
  DataLoader wrong(job.list, {.batch_size = 2});
}

// CASE ctx.loader takes a dataset (IsDataset
void loader_of_a_list_by_the_context(Job& job) {
  job.ctx.loader(job.list, {.batch_size = 2});
}

// CASE make numbers tensors
void loader_of_examples_without_tensors(Job& /*job*/) {
  DataLoader wrong(Numbers(), {.batch_size = 2});
}

// CASE a StreamLoader takes a stream (IsStream)
void stream_loader_of_a_dataset(Job& job) {
  StreamLoader wrong(job.tensors, {.batch_size = 2});
}

// CASE random_split takes a dataset (IsDataset)
void split_of_a_list(Job& job) {
  random_split(job.list, {0.5, 0.5});
}

// CASE a Subset takes a dataset (IsDataset)
void subset_of_a_list(Job& job) {
  Subset wrong(job.list, {0});
}

// CASE a ConcatDataset takes datasets (IsDataset) of one type of Example
void joined_examples_of_two_types(Job& job) {
  ConcatDataset wrong(job.tensors, Numbers());
}

// CASE ZipLoaders takes two or more loaders (IsLoader)
void zipped_dataset(Job& job) {
  ZipLoaders wrong(job.loader, job.tensors);
}

// CASE StepModels
void step_of_no_model(Job& job) {
  TrainStep wrong(7, job.optimizer);
}

// CASE StepModels
void step_of_a_dataset(Job& job) {
  TrainStep wrong(job.tensors, job.optimizer);
}

// CASE Several<torch::optim::Optimizer>
void step_without_an_optimizer(Job& job) {
  TrainStep wrong(job.net, 0.1);
}

// CASE TrainStep takes a batch with weight and last, and a function that returns the loss
void step_without_a_loss(Job& job) {
  TrainStep step(job.net, job.optimizer);
  for (const auto& batch : job.loader)
    step(batch, batch.features);
}

// Three different models, each on a device of its own, at the same time: which one reads digits
// best? On a machine with fewer than three GPUs the others are trained on the CPU, and that is
// said.
#include <muster/muster.h>
#include <torch/torch.h>

#include <cstdio>
#include <iostream>

using torch::nn::Sequential;

Sequential softmax_regression() {
  return Sequential(torch::nn::Flatten(), torch::nn::Linear(64, 10));
}

Sequential mlp() {
  return Sequential(torch::nn::Flatten(),
                    torch::nn::Linear(64, 128),
                    torch::nn::ReLU(),
                    torch::nn::Linear(128, 10));
}

Sequential cnn() {
  return Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)),
                    torch::nn::ReLU(),
                    torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1)),
                    torch::nn::ReLU(),
                    torch::nn::MaxPool2d(2),
                    torch::nn::Flatten(),
                    torch::nn::Linear(32 * 4 * 4, 10));
}

// The part of the test set that is classified rightly.
double test_accuracy(Sequential& model, const muster::TensorDataset& test, torch::Device device) {
  const torch::NoGradGuard no_grad;
  const auto guessed = model->forward(test.features().to(device)).argmax(1);
  return guessed.eq(test.labels().to(device)).to(torch::kDouble).mean().item<double>();
}

double train(Sequential& model, const muster::DatasetSplit& data, const muster::TaskContext& task) {
  model->to(task.device());
  torch::optim::SGD optimizer(muster::distinct_parameters(*model),
                              torch::optim::SGDOptions(0.05).momentum(0.9));
  const auto length = data.train.size();
  muster::DistributedSampler sampler(length, {.seed = static_cast<int64_t>(task.seed(1))});
  muster::DataLoader loader(data.train, sampler, {.batch_size = 32, .device = task.device()});
  for (int epoch = 0; epoch < 15; ++epoch) {
    sampler.set_epoch(epoch);
    for (const auto& batch : loader) {
      torch::cross_entropy_loss(model->forward(batch.features), batch.labels).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  return test_accuracy(model, data.test, task.device());
}

int main() try {
  const auto data = muster::read_digits(DIGITS_FILE);
  torch::manual_seed(
      1);  // tasks share the generator: the models are made here, one after the other
  const std::pair<const char*, Sequential> models[] = {
      {"softmax regression", softmax_regression()}, {"MLP", mlp()}, {"CNN", cnn()}};

  muster::TaskSet tasks({.cpu_slots = 3});
  std::vector<muster::TaskHandle<double>> accuracies;
  for (const auto& [name, model] : models) {
    const auto device = std::to_string(accuracies.size());  // GPU 0, 1 and 2
    const auto work = [model = model, &data](muster::TaskContext& task) mutable {
      return train(model, data, task);
    };
    accuracies.push_back(tasks.add(name, {.device = device, .allow_cpu = true}, work));
  }
  tasks.run();

  std::printf("%-20s %-12s %8s %9s\n", "model", "device", "seconds", "accuracy");
  for (size_t i = 0; const auto& outcome : tasks.outcomes()) {
    std::printf("%-20s %-12s %8.1f %9.4f\n",
                outcome.name.c_str(),
                outcome.place.c_str(),
                outcome.seconds,
                accuracies[i++].result());
  }
  std::puts(muster::to_json_line({{"softmax_regression", accuracies[0].result()},
                                  {"mlp", accuracies[1].result()},
                                  {"cnn", accuracies[2].result()}})
                .c_str());
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}

// Data sets whose samples say which they are, and what ranks read of them together.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "muster/data/loader.h"

namespace muster::test {

// Sample i has the label i and the features {i, 10 i}.
inline TensorDataset numbered(int64_t size, int64_t first = 0) {
  const auto labels = torch::arange(first, first + size);
  return {torch::stack({labels, labels * 10}, 1).to(torch::kFloat), labels};
}

struct Squares : Dataset<at::Tensor> {
  int64_t size() const override { return 100; }
  at::Tensor get(int64_t index, Generator& /*rng*/) const override {
    return torch::tensor(index * index);
  }
};

inline std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> numbers;
  for (int64_t i = begin; i < end; ++i)
    numbers.push_back(i);
  return numbers;
}

inline void add_numbers(const at::Tensor& labels, std::vector<int64_t>* numbers) {
  const auto mine = labels.contiguous();
  const auto* first = mine.const_data_ptr<int64_t>();
  numbers->insert(numbers->end(), first, first + mine.numel());
}

// The labels of the rest of a loader's epoch.
template <class Loader>
std::vector<int64_t> numbers_of(Loader& loader) {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> numbers;
  for (const auto& batch : loader)
    add_numbers(batch.labels, &numbers);
  return numbers;
}

inline std::vector<int64_t> sorted(std::vector<int64_t> numbers) {
  std::ranges::sort(numbers);
  return numbers;
}

template <class D>
DataLoader<D> loader_of_rank(const D& dataset, const SampleOrder& order, int ranks, int rank) {
  return {std::make_shared<const D>(dataset),
          std::make_shared<DistributedSampler>(
              order, SamplerOptions{.num_replicas = ranks, .rank = rank, .seed = 3, .pad = false}),
          {.batch_size = 2}};
}

// What `ranks` ranks read in 2 steps of an epoch, and `later` ranks in the rest of it; sorted.
template <class D>
std::vector<int64_t> numbers_over_a_resume(const D& dataset,
                                           const SampleOrder& order,
                                           int ranks,
                                           int later) {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> numbers;
  DataPosition position;
  for (int rank = 0; rank < ranks; ++rank) {
    auto loader = loader_of_rank(dataset, order, ranks, rank);
    for (const auto& batch : loader.steps(2))
      add_numbers(batch.labels, &numbers);
    position = loader.position();
  }
  for (int rank = 0; rank < later; ++rank) {
    auto loader = loader_of_rank(dataset, order, later, rank);
    loader.restore(position);
    for (const auto& batch : loader)
      add_numbers(batch.labels, &numbers);
  }
  return sorted(numbers);
}

template <class D>
std::vector<int64_t> numbers_over_a_resume(const D& dataset, int ranks, int later) {
  return numbers_over_a_resume(dataset, shuffled(dataset.size()), ranks, later);
}

}  // namespace muster::test

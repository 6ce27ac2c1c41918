// The random numbers of a batch's samples, for transforms of whole batches: each image then has the
// draws that it would have had alone, whatever the batch, the rank and the worker. As a field of an
// example it takes the sample's generator along:
//
//   struct Photo { at::Tensor image, label; muster::Generators rngs; };
//   Photo get(int64_t index, Generator& rng) const { return {read(index), label(index), rng}; }
//   …
//   muster::Generators rngs = batch.rngs;
//   const auto images = transform::color_jitter(batch.image, rngs, {.hue = 0.1});
#pragma once

#include <cstdint>
#include <vector>

#include "muster/data/generator.h"

namespace muster {

class Generators {
 public:
  Generators() = default;
  // One sample's, as get() is given it. What get() draws after this does not count.
  Generators(
      const Generator& rng);  // NOLINT(google-explicit-constructor): a field is written `rng`
  // Of samples that did not bring theirs, as batch.sample_indices: Generator(seed, epoch, index)
  // for each. They are not those that get() had if `seed` is another one.
  Generators(int64_t seed, int64_t epoch, const std::vector<int64_t>& indices);
  // Those of all examples, in their order.
  static Generators collate(const std::vector<Generators>& examples);

  int64_t size() const { return std::ssize(all_); }
  Generator& operator[](int64_t i) { return all_.at(i); }

 private:
  std::vector<Generator> all_;
};

// What a transform draws from. With one generator a batch's images all change alike; with one for
// each image, each changes as it would alone.
struct RandomSource {
  RandomSource(Generator& rng) : one(&rng) {}      // NOLINT(google-explicit-constructor)
  RandomSource(Generators& rngs) : each(&rngs) {}  // NOLINT(google-explicit-constructor)

  Generator* one = nullptr;
  Generators* each = nullptr;
};

}  // namespace muster

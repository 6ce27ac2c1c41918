// A stream from tar shards in WebDataset's layout. Each rank's workers read their own shards
// sequentially, which suits disks, networks and page caches best.
//
//   muster::WebShards shards(muster::shards_of("train-{000..127}.tar"),
//                            [](const muster::WebSample& sample, muster::Generator& rng) {
//                              return Photo{decode_image(sample.file("jpg"), sample.place()), …};
//                            },
//                            {.shuffle_buffer = 1000});
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/data/generator.h"
#include "muster/data/readers/web_samples.h"
#include "muster/data/stream.h"

namespace muster {

// Call it in a handler. Rethrows the exception with shard and key in front.
[[noreturn]] void fail_web_sample(const WebSample& sample);

// `Decode` makes an example from a sample: E(const WebSample&, Generator&), called by several
// threads at once. The generator depends only on seed, epoch and sample.
template <class Decode>
class WebShards : public Stream<std::invoke_result_t<const Decode&, const WebSample&, Generator&>> {
 public:
  using Example = std::invoke_result_t<const Decode&, const WebSample&, Generator&>;

  WebShards(std::vector<std::string> shards, Decode decode, const WebShardsOptions& options = {})
      : shards_(std::move(shards)), decode_(std::move(decode)), options_(options) {}

  // Throws: as WebSampleReader; its next() also throws that, and whatever `decode` throws, with
  // shard and key.
  std::unique_ptr<StreamReader<Example>> open(const StreamPart& part) const override {
    return std::make_unique<Reader>(*this, part);
  }

  const std::vector<std::string>& shards() const { return shards_; }

 private:
  class Reader : public StreamReader<Example> {
   public:
    Reader(const WebShards& of, const StreamPart& part)
        : part_(part), decode_(of.decode_), samples_(of.shards_, of.options_, part) {}

    std::optional<Example> next() override {
      const auto sample = samples_.next();
      if (!sample)
        return std::nullopt;
      Generator rng(part_.seed, part_.epoch, sample->number);
      try {
        return decode_(*sample, rng);
      } catch (const std::bad_alloc&) {
        throw;  // the sample is not bad
      } catch (...) {
        fail_web_sample(*sample);
      }
    }
    void skip(int64_t count) override { samples_.skip(count); }

   private:
    StreamPart part_;
    Decode decode_;
    WebSampleReader samples_;
  };

  std::vector<std::string> shards_;
  Decode decode_;
  WebShardsOptions options_;
};

}  // namespace muster

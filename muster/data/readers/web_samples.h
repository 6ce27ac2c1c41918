// The samples of tar shards in WebDataset's layout, as bytes: files that follow each other and share a name
// up to its first dot are one sample. Read by web_shards.h, which decodes them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/data/stream.h"

namespace muster {

struct WebSample {
  struct File {
    std::string ending;  // "jpg", "seg.png": after the first dot, in small letters
    std::string bytes;
  };
  std::string shard;
  std::string key;
  std::vector<File> files;
  int64_t number = 0;  // of all samples, whichever part reads it: for a Generator

  bool has(std::string_view ending) const;
  // Throws: invalid_argument naming shard, key and the endings there are, when it is none of them.
  const std::string& file(std::string_view ending) const;
  // "'a/0001' of 'train-003.tar'", for messages.
  std::string place() const;
};

struct WebShardsOptions {
  bool shuffle_shards = true;  // another order in every epoch
  // Samples that are held, as bytes, to take the next from at random; 0: in the order of the shard.
  int64_t shuffle_buffer = 0;
  uint64_t max_sample_bytes = uint64_t{1} << 30;  // a larger sample is an error
};

// "train-{000..127}.tar" becomes 128 names; a folder the names of its .tar files, sorted.
// Throws: io when there is none, or one of them is not there; invalid_argument for braces of another form.
std::vector<std::string> shards_of(const std::string& pattern);

// One part's samples. The shards, in the epoch's order, are dealt to the parts in turn.
class WebSampleReader : public StreamReader<WebSample> {
 public:
  // Throws: invalid_argument when there are fewer shards than parts; unavailable without libarchive.
  WebSampleReader(std::vector<std::string> shards, const WebShardsOptions& options, const StreamPart& part);
  ~WebSampleReader() override;

  // Throws: invalid_argument naming shard and sample of what is damaged or cut short; the next call goes on
  // with the next shard.
  std::optional<WebSample> next() override;
  void skip(int64_t count) override;

 private:
  struct State;
  std::optional<WebSample> take(bool with_bytes);
  std::optional<WebSample> from_shards(bool with_bytes);
  std::optional<WebSample> from_shard(bool with_bytes);

  std::unique_ptr<State> state_;
};

}  // namespace muster

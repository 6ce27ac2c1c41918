// The samples of tar shards in WebDataset's layout, as bytes: consecutive files whose names are
// equal up to the first dot form one sample. Files that WebDataset leaves out are left out: those
// without a dot (README), those that begin with one (.DS_Store, ._0001.jpg) and __meta__ ones. Read
// by web_shards.h, which decodes the samples.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/strings.h"
#include "muster/data/stream.h"

namespace muster {

struct WebSample {
  struct File {
    std::string ending;  // "jpg", "seg.png": after the first dot, in lower case
    std::string bytes;
  };
  std::string shard;
  std::string key;
  std::vector<File> files{};
  int64_t number = 0;  // among all samples, whichever part reads it: for a Generator

  bool has(std::string_view ending) const;
  // Throws: invalid_argument naming shard, key and the known endings, if there is no such file.
  const std::string& file(std::string_view ending) const;
  // "'a/0001' of 'train-003.tar'", for messages.
  std::string place() const;
};

struct WebShardsOptions {
  bool shuffle_shards = true;  // a different order in every epoch
  // Number of samples kept, as bytes, to draw the next one at random; 0: in the shard's order.
  int64_t shuffle_buffer = 0;
  uint64_t max_sample_bytes = uint64_t{1} << 30;  // a larger sample is an error
};

// "train-{000..127}.tar" becomes 128 names; a folder becomes the names of its .tar files
// (also .tar.gz, .tgz, .tar.zst, .tar.xz, .tar.bz2, .tar.lz4), sorted.
// Throws: io if there is none, or one is missing; invalid_argument for braces of another form.
Strings shards_of(const std::string& pattern);

// One part's samples. The shards, in the epoch's order, are dealt to the parts in turn.
class WebSampleReader : public StreamReader<WebSample> {
 public:
  // Throws: invalid_argument for fewer shards than parts; unavailable without libarchive.
  WebSampleReader(Strings shards, const WebShardsOptions& options, const StreamPart& part);
  ~WebSampleReader() override;

  // Throws: invalid_argument naming shard and sample that are damaged or truncated; the next call
  // continues with the next shard. The same for a sample that has a file twice; the next call
  // continues after it.
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

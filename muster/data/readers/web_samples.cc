// Samples out of tar shards. A reader has every parts-th shard of the epoch's order, and reads one
// after the other; files of equal key are one sample. With a buffer, a sample is drawn at random
// from those that were read ahead. Everything random comes from seed, epoch and part, so a stream
// that is resumed by skip() goes on as it would have.
#include "muster/data/readers/web_samples.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <set>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/folders.h"
#include "muster/base/hex.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/zero_padded.h"
#include "muster/data/generator.h"
#include "muster/data/loader_core.h"
#include "muster/data/mix.h"
#include "muster/data/readers/tar_reader.h"
#include "muster/data/readers/web_shards.h"

namespace muster {

// A file's sample, and which of its files it is.
struct WebName {
  std::string key;     // up to the first dot behind the last slash
  std::string ending;  // what follows it
};

namespace {

constexpr int64_t kMostShards = 10'000'000;
constexpr uint64_t kShardOrder = 1;  // keeps the orders of shards and of buffers apart
constexpr uint64_t kBufferOrder = 2;

// Returns nothing for a file of no sample, as WebDataset has it: without a dot (README), with
// nothing before it (.DS_Store, ._0001.jpg), or with a name of its own kind (__index__).
std::optional<WebName> web_name(const std::string& name) {
  const size_t slash = name.rfind('/');
  const size_t begin = slash == npos ? 0 : slash + 1;
  const size_t dot = name.find('.', begin);
  const std::string_view file = std::string_view(name).substr(begin);
  if (dot == npos || dot == begin || (file.starts_with("__") && file.ends_with("__")))
    return std::nullopt;

  return WebName{.key = name.substr(0, dot), .ending = lower_case(name.substr(dot + 1))};
}

// A link to a file would leave its sample without one, or leave it out.
void check_no_link(const TarReader& tar, const std::string& name) {
  if (!tar.is_link())
    return;
  throw invalid_argument(
      "web shards: expected files, got the link '",
      escaped(name),
      "'; write the shard with what it links to: tar --dereference --hard-dereference");
}

std::optional<WebName> next_web_name(TarReader& tar) {
  while (const auto name = tar.next()) {
    if (auto found = web_name(*name)) {
      check_no_link(tar, *name);
      return found;
    }
  }
  return std::nullopt;
}

// A file that occurs twice would hide the other, so the sample is refused.
void check_once(const WebSample& sample) {
  std::set<std::string_view> endings;
  for (const WebSample::File& file : sample.files) {
    if (endings.insert(file.ending).second)
      continue;
    throw invalid_argument("web shards: expected each file of the sample ",
                           sample.place(),
                           " once, got '.",
                           escaped(file.ending),
                           "' twice; give samples names of their own up to the first dot");
  }
}

Generator generator_of(const StreamPart& part, uint64_t purpose, int64_t index) {
  return {static_cast<int64_t>(mixed(part.seed, purpose)), part.epoch, index};
}

[[noreturn]] void refuse_braces(const std::string& pattern) {
  throw invalid_argument(
      "web shards: expected a folder, a file, or a pattern with one {000..127}, got '",
      pattern,
      "'; correct it, or give the names of all shards");
}

// Numbers keep the width of the first: {000..127} gives 000, 001, ….
Strings expanded(const std::string& pattern) {
  const size_t open = pattern.find('{');
  if (open == npos)
    return {pattern};
  const size_t dots = pattern.find("..", open);
  const size_t close = pattern.find('}', open);
  if (dots == npos || close == npos || dots > close)
    refuse_braces(pattern);
  const auto low = pattern.substr(open + 1, dots - open - 1);
  const auto first = parse_int(low);
  const auto last = parse_int(pattern.substr(dots + 2, close - dots - 2));
  if (!first || !last || *first < 0 || *last < *first || *last - *first >= kMostShards)
    refuse_braces(pattern);
  Strings names;
  for (int64_t i = *first; i <= *last; ++i) {
    const auto number = zero_padded(cat(i), low.size());
    names.push_back(cat(pattern.substr(0, open), number, pattern.substr(close + 1)));
  }
  return names;
}

// Of the compressions that TarReader reads.
bool is_shard(const std::filesystem::path& path) {
  const std::string name = lower_case(file_name(path));
  return any_of(
      std::array{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2", ".tar.lz4"},
      [&](const char* ending) { return name.ends_with(ending); });
}

// The names are sorted, since a folder lists them in any order and all ranks must agree.
Strings tars_in(const std::string& folder) {
  Strings names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (is_shard(entry.path()))
      names.push_back(entry.path().string());
  std::ranges::sort(names);
  if (names.empty())
    throw Error(ErrorCode::io,
                "web shards: expected .tar files (or .tar.gz and the like) in the folder '",
                folder,
                "', got none; correct the folder");
  return names;
}

}  // namespace

void fail_web_sample(const WebSample& sample) {
  fail_within(cat("web shards: sample ", sample.place()), ErrorCode::invalid_argument);
}

bool WebSample::has(std::string_view ending) const {
  return contains(files, ending, &File::ending);
}

const std::string& WebSample::file(std::string_view ending) const {
  Strings endings;
  for (const File& file : files) {
    if (file.ending == ending)
      return file.bytes;
    endings.push_back(escaped(file.ending));
  }
  throw invalid_argument("web shards: expected a file '.",
                         ending,
                         "' of the sample ",
                         place(),
                         ", got .",
                         join(endings, ", ."));
}

std::string WebSample::place() const {
  return cat("'", escaped(key), "' of '", shard, "'");
}

// A missing shard is refused here, before training begins, and not when its turn comes.
Strings shards_of(const std::string& pattern) {
  if (std::filesystem::is_directory(pattern))
    return tars_in(pattern);
  auto names = expanded(pattern);
  for (const auto& name : names)
    if (!std::filesystem::exists(name))
      throw Error(ErrorCode::io,
                  "web shards: expected the file '",
                  name,
                  "', got none; correct the pattern");
  return names;
}

struct WebSampleReader::State {
  Strings shards;
  WebShardsOptions options;
  Int64s mine{};          // numbers of shards, in this part's order
  size_t next_shard = 0;  // in `mine`
  std::unique_ptr<TarReader> tar{};
  std::optional<WebName> name{};  // the tar's next file, which was named and not read
  int64_t in_shard = 0;           // samples so far
  std::vector<WebSample> buffer{};
  Generator chance;
};

WebSampleReader::WebSampleReader(Strings shards,
                                 const WebShardsOptions& options,
                                 const StreamPart& part)
    : state_(new State{.shards = std::move(shards),
                       .options = options,
                       .chance = generator_of(part, kBufferOrder, part.part)}) {
  TarReader::need_library();  // its lack is no damaged sample, which may be left out
  const int64_t count = std::ssize(state_->shards);
  if (count < part.parts)
    throw invalid_argument("web shards: expected at least a shard for each of ",
                           part.parts,
                           " parts (ranks × workers), got ",
                           count,
                           "; use fewer workers, or make smaller shards");
  auto order = mapped_indices(count, std::identity());
  // Every part draws one order of all shards and takes its own out of it, so no shard is read
  // twice.
  if (options.shuffle_shards) {
    Generator rng = generator_of(part, kShardOrder, 0);
    for (int64_t i = count; i > 1; --i)
      std::swap(order[i - 1], order[rng.integer(i)]);
  }
  for (int64_t i = part.part; i < count; i += part.parts)
    state_->mine.push_back(order[i]);
}

WebSampleReader::~WebSampleReader() = default;

std::optional<WebSample> WebSampleReader::next() {
  return take(true);
}

// A sample that stays in the buffer must be there, bytes and all. Without a buffer nothing is read.
void WebSampleReader::skip(int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    try {
      if (!take(state_->options.shuffle_buffer > 0))
        return;
    } catch (const Error&) {  // was counted when it was first read
    }
  }
}

// The buffer is filled up before each draw, and drained when the shards have ended.
std::optional<WebSample> WebSampleReader::take(bool with_bytes) {
  State& state = *state_;
  if (state.options.shuffle_buffer <= 0)
    return from_shards(with_bytes);
  while (std::ssize(state.buffer) < state.options.shuffle_buffer) {
    auto sample = from_shards(with_bytes);
    if (!sample)
      break;
    state.buffer.push_back(std::move(*sample));
  }
  if (state.buffer.empty())
    return std::nullopt;
  const int64_t chosen = state.chance.integer(std::ssize(state.buffer));
  std::swap(state.buffer[chosen], state.buffer.back());
  WebSample sample = std::move(state.buffer.back());
  state.buffer.pop_back();
  return sample;
}

// A shard that throws is left: the next call begins the next shard.
std::optional<WebSample> WebSampleReader::from_shards(bool with_bytes) {
  State& state = *state_;
  while (true) {
    if (!state.tar) {
      if (state.next_shard == state.mine.size())
        return std::nullopt;
      state.in_shard = 0;
      state.name.reset();
      state.tar = std::make_unique<TarReader>(state.shards[state.mine[state.next_shard++]]);
    }
    std::optional<WebSample> sample;
    try {
      sample = from_shard(with_bytes);
    } catch (...) {
      state.tar.reset();
      throw;
    }
    if (sample) {
      check_once(*sample);  // the shard is whole: the next call continues in it
      return sample;
    }
    state.tar.reset();
  }
}

// The result is nothing at the shard's end. The file that ends a sample is the next one's first, so
// its name is kept.
std::optional<WebSample> WebSampleReader::from_shard(bool with_bytes) {
  State& state = *state_;
  const int64_t shard = state.mine[state.next_shard - 1];
  if (!state.name)
    state.name = next_web_name(*state.tar);
  if (!state.name)
    return std::nullopt;
  WebSample sample{.shard = state.shards[shard], .key = state.name->key};
  sample.number = shard << 32 | state.in_shard++;
  uint64_t left = state.options.max_sample_bytes;
  while (state.name && state.name->key == sample.key) {
    // The size counts also where nothing is read: a resumed stream passes over it alike.
    const uint64_t size = state.tar->size(left);
    std::string bytes = with_bytes ? state.tar->read(left) : std::string();
    left -= size;
    sample.files.push_back({.ending = state.name->ending, .bytes = std::move(bytes)});
    state.name = next_web_name(*state.tar);
  }
  return sample;
}

}  // namespace muster

#include "muster/data/readers/web_shards.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>
#include <new>
#include <set>
#include <utility>

#include "muster/base/error.h"
#include "muster/data/readers/archive_library.h"
#include "muster/data/stream_loader.h"
#include "tests/data/files.h"
#include "tests/data/tars.h"

namespace muster {
namespace {

using test::message_of;
using test::tar_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string sample_key(int shard, int sample) {
  return "s" + std::to_string(shard) + "/" + std::to_string(sample);
}

class WebShardsTest : public ::testing::Test {
 protected:
  // Shards of `samples` samples with a number and a text each.
  std::vector<std::string> put_shards(int shards, int samples) {
    std::vector<std::string> names;
    for (int s = 0; s < shards; ++s) {
      std::vector<std::pair<std::string, std::string>> files;
      for (int i = 0; i < samples; ++i) {
        files.emplace_back(sample_key(s, i) + ".cls", std::to_string(s * samples + i));
        files.emplace_back(sample_key(s, i) + ".seg.TXT",
                           std::string(static_cast<size_t>(i) * 300, 'x'));
      }
      names.push_back(folder_ / ("shard-" + std::to_string(s) + ".tar"));
      test::put_file(names.back(), tar_of(files));
    }
    return names;
  }

  static std::vector<std::string> keys(WebSampleReader& reader) {
    std::vector<std::string> found;
    while (const auto sample = reader.next())
      found.push_back(sample->key);
    return found;
  }
  static std::vector<std::string> keys_of(const std::vector<std::string>& shards,
                                          const WebShardsOptions& options,
                                          const StreamPart& part = {}) {
    WebSampleReader reader(shards, options, part);
    return keys(reader);
  }

  test::TempFolder folder_;
};

TEST_F(WebShardsTest, GroupsFilesByKey) {
  test::put_file(
      folder_ / "a.tar",
      tar_of({{"x/1.jpg", "j1"}, {"x/1.cls", "7"}, {"x.y/2.jpg", "j2"}, {"x/3.txt", "p"}}));
  WebSampleReader reader(shards_of(folder_.path()), {}, {});
  const auto first = *reader.next();
  EXPECT_EQ(first.key, "x/1");
  EXPECT_EQ(first.file("jpg"), "j1");
  EXPECT_EQ(first.file("cls"), "7");
  EXPECT_FALSE(first.has("png"));
  EXPECT_THAT(message_of([&] { first.file("png"); }),
              AllOf(HasSubstr("'.png'"), HasSubstr("'x/1' of '"), HasSubstr(".jpg, .cls")));
  EXPECT_EQ(reader.next()->key, "x.y/2");
  EXPECT_EQ(reader.next()->file("txt"), "p");
  EXPECT_FALSE(reader.next());
  EXPECT_FALSE(reader.next());
}

// What macOS and people put beside the samples.
TEST_F(WebShardsTest, LeavesOutWhatIsOfNoSample) {
  test::put_file(folder_ / "a.tar",
                 tar_of({{"README", "r"},
                         {"._1.jpg", "m"},
                         {"1.jpg", "one"},
                         {"x/.DS_Store", "d"},
                         {"1.cls", "7"},
                         {"__index__.txt__", "i"},
                         {"x/._2.jpg", "m"},
                         {"x/2.jpg", "two"},
                         {"LICENSE", "l"}}));
  WebSampleReader reader({folder_ / "a.tar"}, {}, {});
  const auto first = *reader.next();
  EXPECT_EQ(first.file("jpg"), "one");
  EXPECT_EQ(first.file("cls"), "7");
  EXPECT_EQ(first.number, 0);
  const auto second = *reader.next();
  EXPECT_EQ(second.key, "x/2");
  EXPECT_EQ(second.number, 1);
  EXPECT_FALSE(reader.next());
}

TEST_F(WebShardsTest, RefusesASampleThatHasAFileTwice) {
  test::put_file(folder_ / "a.tar",
                 tar_of({{"1.jpg", "a"},
                         {"1.cls", "0"},
                         {"1.jpg", "b"},
                         {"1.cls", "1"},
                         {"2.jpg", "c"},
                         {"3.a.jpg", "d"},
                         {"3.b.jpg", "e"}}));
  for (const bool skips : {false, true}) {
    WebSampleReader reader({folder_ / "a.tar"}, {}, {});
    if (skips) {
      reader.skip(1);
    } else {
      EXPECT_THAT(message_of([&] { reader.next(); }),
                  AllOf(HasSubstr("each file of the sample '1' of '"), HasSubstr("'.jpg' twice")));
    }
    EXPECT_EQ(reader.next()->file("jpg"), "c");
    EXPECT_EQ(reader.next()->file("b.jpg"), "e");
    EXPECT_FALSE(reader.next());
  }
}

TEST_F(WebShardsTest, RefusesLinksInThePlaceOfFiles) {
  for (const char type : {'1', '2'}) {
    test::put_file(folder_ / "a.tar",
                   test::tar_entry("a.jpg", "j") + test::tar_entry("README", "", '2', "a.jpg") +
                       test::tar_entry("b.jpg", "", type, "a.jpg") + test::tar_end());
    WebSampleReader reader({folder_ / "a.tar"}, {}, {});
    EXPECT_THAT(message_of([&] { reader.next(); }),
                AllOf(HasSubstr("got the link 'b.jpg'"), HasSubstr("--hard-dereference")));
  }
}

TEST_F(WebShardsTest, ReadsCompressedShards) {
  test::put_file(folder_ / "a.tar", test::gzip(tar_of({{"1.txt", "one"}, {"2.txt", "two"}})));
  WebSampleReader reader({folder_ / "a.tar"}, {}, {});
  EXPECT_EQ(reader.next()->file("txt"), "one");
  EXPECT_EQ(reader.next()->file("txt"), "two");
  EXPECT_FALSE(reader.next());
}

TEST_F(WebShardsTest, GivesEachPartShardsOfItsOwn) {
  const auto shards = put_shards(7, 3);
  for (const bool shuffle : {false, true}) {
    std::multiset<std::string> seen;
    for (int64_t part = 0; part < 3; ++part)
      for (const auto& key : keys_of(shards,
                                     {.shuffle_shards = shuffle, .shuffle_buffer = 2},
                                     {.part = part, .parts = 3}))
        seen.insert(key);
    EXPECT_EQ(seen.size(), 21U);
    EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), 21U);
  }
  EXPECT_THAT(message_of([&] { WebSampleReader(shards, {}, {.part = 0, .parts = 8}); }),
              AllOf(HasSubstr("each of 8 parts"), HasSubstr("got 7")));
}

TEST_F(WebShardsTest, ShufflesAnewInEveryEpoch) {
  const auto shards = put_shards(4, 10);
  const WebShardsOptions options{.shuffle_buffer = 15};
  const auto first = keys_of(shards, options, {.seed = 1, .epoch = 0});
  EXPECT_EQ(first, keys_of(shards, options, {.seed = 1, .epoch = 0}));
  EXPECT_NE(first, keys_of(shards, options, {.seed = 1, .epoch = 1}));
  EXPECT_NE(first, keys_of(shards, options, {.seed = 2, .epoch = 0}));
  EXPECT_EQ(keys_of(shards, {.shuffle_shards = false})[10], "s1/0");
}

TEST_F(WebShardsTest, SkipsAsItReads) {
  const auto shards = put_shards(3, 8);
  test::put_file(shards[1], test::get_file(shards[1]).substr(0, 6000));  // within a sample
  struct Case {
    int64_t buffer;
    uint64_t largest;
    int64_t errors;
  };
  for (const Case& c :
       {Case{0, 1U << 20, 1}, Case{5, 1U << 20, 1}, Case{0, 500, 3}, Case{5, 500, 3}}) {
    const WebShardsOptions options{
        .shuffle_shards = false, .shuffle_buffer = c.buffer, .max_sample_bytes = c.largest};
    const auto read = [&](WebSampleReader& reader) {
      std::vector<std::string> seen;
      while (true) {
        try {
          const auto sample = reader.next();
          if (!sample)
            return seen;
          seen.push_back(sample->key + sample->file("cls"));
        } catch (const Error& error) {
          seen.push_back("error");
        }
      }
    };
    WebSampleReader whole(shards, options, {});
    const auto all = read(whole);
    EXPECT_EQ(std::count(all.begin(), all.end(), "error"), c.errors);
    for (size_t count = 0; count <= all.size() + 1; ++count) {
      WebSampleReader rest(shards, options, {});
      rest.skip(static_cast<int64_t>(count));
      EXPECT_EQ(read(rest),
                std::vector<std::string>(
                    all.begin() + static_cast<int64_t>(std::min(count, all.size())), all.end()));
    }
  }
}

// Two ranks read some of them, then three the rest; one shard is cut within a sample.
TEST_F(WebShardsTest, OtherRanksReadWhatIsLeftOnce) {
  const auto shards = put_shards(6, 9);
  test::put_file(shards[1], test::get_file(shards[1]).substr(0, 9000));
  const auto decode = [](const WebSample& sample, Generator& rng) {
    return std::pair<int64_t, double>(std::stol(sample.file("cls")), rng.uniform());
  };
  for (const int64_t buffer : {0, 5}) {
    const WebShards stream(shards, decode, {.shuffle_buffer = buffer});
    std::map<int64_t, double> chances;  // by sample
    const auto read = [&](auto&& batches) {
      for (const auto& batch : batches) {
        (void)static_cast<double>(batch.weight);
        for (int64_t i = 0; i < batch.samples; ++i) {
          const auto number = std::get<0>(batch)[i].template item<int64_t>();
          EXPECT_TRUE(chances.emplace(number, std::get<1>(batch)[i].template item<double>()).second)
              << number;
        }
      }
    };
    StreamLoader whole(stream, {.batch_size = 4, .skip_bad = true, .seed = 5});
    read(whole);
    const auto by_one = std::exchange(chances, {});
    std::vector<StreamPosition> positions;
    for (int64_t rank = 0; rank < 2; ++rank) {
      StreamLoader loader(
          stream,
          {.batch_size = 3, .workers = 2, .skip_bad = true, .seed = 5, .rank = rank, .ranks = 2});
      read(loader.steps(3));
      positions.push_back(loader.position());
    }
    for (int64_t rank = 0; rank < 3; ++rank) {
      StreamLoader loader(
          stream,
          {.batch_size = 2, .workers = 2, .skip_bad = true, .seed = 5, .rank = rank, .ranks = 3});
      loader.restore(positions);
      read(loader);
    }
    EXPECT_EQ(chances, by_one) << "a buffer of " << buffer;
    EXPECT_GT(by_one.size(), 45U);
  }
}

TEST_F(WebShardsTest, OutOfMemoryIsNoBadSample) {
  const auto decode = [](const WebSample& sample, Generator& /*rng*/) -> int64_t {
    if (sample.key == sample_key(0, 1))
      throw std::bad_alloc();
    return std::stol(sample.file("cls"));
  };
  StreamLoader loader(WebShards(put_shards(1, 3), decode), {.batch_size = 3, .skip_bad = true});
  EXPECT_THAT(message_of([&] { loader.begin(); }), HasSubstr("out of memory"));
}

TEST_F(WebShardsTest, NamesShardAndSampleOfWhatIsCutShort) {
  const auto shards = put_shards(1, 4);
  const std::string whole = test::get_file(shards[0]);
  for (const size_t keep : {whole.size() - 1024, whole.size() - 1536, size_t{3000}, size_t{700}}) {
    test::put_file(shards[0], whole.substr(0, keep));
    WebSampleReader reader(shards, {}, {});
    const auto message = message_of([&] { keys(reader); });
    EXPECT_THAT(message, AllOf(HasSubstr("shard-0.tar"), HasSubstr("(in or after 's0/")));
    EXPECT_FALSE(reader.next());
  }
  test::put_file(shards[0], "<html>" + std::string(2000, 'x'));
  WebSampleReader reader(shards, {}, {});
  EXPECT_THAT(message_of([&] { reader.next(); }), HasSubstr("expected a whole tar archive"));
  test::put_file(shards[0], whole);
  WebSampleReader bounded(shards, {.max_sample_bytes = 500}, {});
  EXPECT_THAT(message_of([&] { keys(bounded); }),
              AllOf(HasSubstr("more than"), HasSubstr("s0/2.seg.TXT")));
}

TEST(ArchiveLibrary, NamesThePackageWhereItIsMissing) {
  EXPECT_THAT(
      message_of([] { ArchiveLibrary("libarchive.so.0"); }),
      AllOf(HasSubstr("expected libarchive.so.0 to read shards"), HasSubstr("libarchive13")));
  EXPECT_THAT(message_of([] { ArchiveLibrary("libc.so.6"); }),
              AllOf(HasSubstr("no function archive_read_new"), HasSubstr("libarchive13")));
}

TEST_F(WebShardsTest, FindsShards) {
  put_shards(3, 1);
  EXPECT_EQ(shards_of(folder_ / "shard-{0..2}.tar").size(), 3U);
  EXPECT_EQ(shards_of(folder_.path()).size(), 3U);
  for (const char* name : {"a.tar.gz", "b.tgz", "C.TAR"})
    test::put_file(folder_ / name, "");
  test::put_file(folder_ / "d.tar.part", "");  // what a download has not finished
  EXPECT_EQ(shards_of(folder_.path()).size(), 6U);
  EXPECT_THAT(shards_of(folder_ / "shard-1.tar"), ElementsAre(folder_ / "shard-1.tar"));
  EXPECT_THAT(message_of([&] { shards_of(folder_ / "shard-{0..3}.tar"); }),
              HasSubstr("shard-3.tar"));
  EXPECT_THAT(message_of([&] { shards_of(folder_ / "shard-{000..002}.tar"); }),
              HasSubstr("shard-000.tar"));
  for (const char* wrong : {"a{2..1}", "a{0..}", "a{0..1", "a{x..y}", "a{0..99999999999}"})
    EXPECT_THAT(message_of([&] { shards_of(wrong); }), HasSubstr("{000..127}"));
  EXPECT_THAT(message_of([&] { shards_of("/nowhere/a.tar"); }), HasSubstr("/nowhere/a.tar"));
}

TEST_F(WebShardsTest, DecodesWithTheSamplesOwnChance) {
  const auto shards = put_shards(4, 3);
  const WebShards stream(shards, [](const WebSample& sample, Generator& rng) {
    return std::pair<std::string, double>(sample.key, rng.uniform());
  });
  std::map<std::string, double> alone;
  const auto one = stream.open({});
  while (const auto example = one->next())
    alone.insert(*example);
  EXPECT_EQ(alone.size(), 12U);
  for (int64_t part = 0; part < 2; ++part) {
    const auto reader = stream.open({.part = part, .parts = 2});
    while (const auto example = reader->next())
      EXPECT_EQ(alone[example->first], example->second);
  }
  const WebShards failing(
      shards,
      [](const WebSample&, Generator&) -> int64_t { throw std::runtime_error("no good"); },
      {.shuffle_shards = false});
  EXPECT_THAT(
      message_of([&] { failing.open({})->next(); }),
      AllOf(HasSubstr("sample 's0/0' of '"), HasSubstr("shard-0.tar"), HasSubstr("no good")));
}

}  // namespace
}  // namespace muster

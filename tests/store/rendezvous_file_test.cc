#include "muster/store/rendezvous_file.h"

#include <gmock/gmock.h>
#include <poll.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/store/socket.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

// The file holds the job's secret, under whatever name.
TEST(RendezvousFile, ASecretThatFindsNoPlaceIsNotLeft) {
  const ScratchFolder folder;
  const std::string place = folder.path() + "/agents";
  std::filesystem::create_directory(place);
  EXPECT_THROW(rendezvous_by_file(place, true, "127.0.0.1", std::chrono::seconds(5)), Error);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    EXPECT_EQ(entry.path(), place);
}

TEST(RendezvousFile, APlaceThatIsNotThereIsNamedAlone) {
  const ScratchFolder folder;
  const std::string place = folder.path() + "/nowhere/agents";
  try {
    rendezvous_by_file(place, true, "127.0.0.1", std::chrono::seconds(5));
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), testing::HasSubstr("'" + place + "'"));
  }
}

std::string text_of(const RendezvousPoint& point) {
  return cat(point.secret.hex(), "\n", point.endpoint, "\n");
}

// A job that was killed has left the file. Whoever comes first of the next job of that name finds
// it, and nobody there.
TEST(RendezvousFile, OneOfAJobThatIsGoneIsWaitedOut) {
  const ScratchFolder folder;
  const std::string place = folder.path() + "/agents";
  Endpoint gone = {.host = "127.0.0.1"};
  Fd listener = listen_on(gone, Deadline(std::chrono::seconds(60)));
  write_file(place, text_of({.endpoint = to_string(gone), .secret = Secret::make()}));
  std::filesystem::permissions(place, std::filesystem::perms::owner_read);
  RendezvousStore other;
  std::thread client(
      [&] { other = rendezvous_by_file(place, false, "127.0.0.1", std::chrono::seconds(60)); });
  pollfd has_come = {.fd = listener.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&has_come, 1, 60'000), 1);
  listener.reset();
  const RendezvousStore first =
      rendezvous_by_file(place, true, "127.0.0.1", std::chrono::seconds(60));
  client.join();
  first.store->set("key", "value");
  ASSERT_TRUE(other.store);
  EXPECT_EQ(other.store->get("key", std::chrono::seconds(60)), "value");
}

// The port is another program's by now, which waits for its client to speak first, as an HTTP
// server does. An answer of the store itself may take as long as the caller likes.
TEST(RendezvousFile, AProgramThatNeverAnswersIsWaitedOut) {
  const ScratchFolder folder;
  const std::string place = folder.path() + "/agents";
  Endpoint silent = {.host = "127.0.0.1"};
  const Fd listener = listen_on(silent, Deadline(std::chrono::seconds(60)));
  write_file(place, text_of({.endpoint = to_string(silent), .secret = Secret::make()}));
  std::filesystem::permissions(place, std::filesystem::perms::owner_read);
  RendezvousStore other;
  std::thread client(
      [&] { other = rendezvous_by_file(place, false, "127.0.0.1", std::chrono::hours(1)); });
  pollfd has_come = {.fd = listener.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&has_come, 1, 60'000), 1);
  const RendezvousStore first =
      rendezvous_by_file(place, true, "127.0.0.1", std::chrono::seconds(60));
  client.join();
  first.store->set("key", "value");
  ASSERT_TRUE(other.store);
  EXPECT_EQ(other.store->get("key", std::chrono::seconds(60)), "value");
}

TEST(RendezvousFile, NobodyThereIsToldWithTheFile) {
  const ScratchFolder folder;
  const std::string place = folder.path() + "/agents";
  write_file(place, text_of({.endpoint = "tcp://127.0.0.1:1", .secret = Secret::make()}));
  std::filesystem::permissions(place, std::filesystem::perms::owner_read);
  try {
    rendezvous_by_file(place, false, "127.0.0.1", std::chrono::milliseconds(100));
    FAIL() << "it was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.message(),
                testing::AllOf(testing::HasSubstr(place), testing::HasSubstr("refused")));
  }
}

// The next job of that name has begun before this one's end.
TEST(RendezvousFile, AnotherJobsStays) {
  const ScratchFolder folder;
  const std::string place = folder.path() + "/agents";
  const RendezvousPoint mine = {.endpoint = "tcp://127.0.0.1:1", .secret = Secret::make()};
  const RendezvousPoint theirs = {.endpoint = "tcp://127.0.0.1:2", .secret = Secret::make()};
  auto first = std::make_unique<RendezvousFile>(place, mine);
  {
    const RendezvousFile second(place, theirs);
    first.reset();
    EXPECT_EQ(read_file(place), text_of(theirs));
  }
  EXPECT_FALSE(std::filesystem::exists(place));
}

}  // namespace
}  // namespace muster

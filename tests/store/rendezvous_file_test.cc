#include "muster/store/rendezvous_file.h"

#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>

#include "muster/base/error.h"
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

}  // namespace
}  // namespace muster

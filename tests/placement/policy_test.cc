#include "muster/placement/policy.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// What `policy` gives each of `num_ranks` ranks (0: its capacity) of a host with 4 GPUs.
std::vector<int> choices(const char* policy, const Request& request, int num_ranks = 0) {
  const Host host = gpu_host(0, 4);
  const std::vector<UsableGpu> gpus = usable_gpus(host, {}).gpus;
  const PolicyInput input{host, gpus, request};
  const Policy& chosen = find_policy(policy);
  std::vector<int> indices;
  for (const auto& choice : chosen.choose(input, num_ranks > 0 ? num_ranks : chosen.capacity(input))) {
    indices.push_back(host.gpus[choice.gpu.position].index.value);
    EXPECT_THAT(choice.reason, testing::StartsWith(policy));
  }
  return indices;
}

template <class Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(Policy, TableIsConsistent) {
  std::vector<std::string> names;
  for (const Policy& policy : policies()) {
    names.emplace_back(policy.name);
    EXPECT_EQ(find_policy(policy.name).choose, policy.choose);
    EXPECT_STRNE(policy.summary, "");
  }
  EXPECT_THAT(names, ElementsAre("sequential", "list"));
}

TEST(Policy, UnknownNameListsThoseThereAre) {
  EXPECT_EQ(error_of([] { find_policy("fastets"); }),
            "--policy: expected one of sequential, list, got 'fastets'");
}

TEST(Sequential, InOrderAndAround) {
  EXPECT_THAT(choices("sequential", {}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(choices("sequential", {}, 2), ElementsAre(0, 1));
  EXPECT_THAT(choices("sequential", {}, 6), ElementsAre(0, 1, 2, 3, 0, 1));
}

TEST(List, AnyMapping) {
  EXPECT_THAT(choices("list", {.map = {3, 1, 0, 2}}), ElementsAre(3, 1, 0, 2));
  EXPECT_THAT(choices("list", {.map = {2}}), ElementsAre(2));
  EXPECT_THAT(choices("list", {.map = {3, 1}}, 3), ElementsAre(3, 1, 3));
}

TEST(List, LengthAndRange) {
  EXPECT_THAT(error_of([] { choices("list", {}); }), HasSubstr("got none; give --map"));
  EXPECT_EQ(error_of([] {
              choices("list", {.map = {0, 4}});
            }),
            "--map: expected a GPU of host n0 that can be used (0, 1, 2, 3), got 4 at place 2");
  EXPECT_THAT(error_of([] { choices("list", {.map = {0, -1}}); }), HasSubstr("got -1 at place 2"));
  EXPECT_EQ(error_of([] {
              choices("list", {.map = {0, 1, 2}}, 2);
            }),
            "--map: expected 2 GPU indices, one for each rank of host n0, got 3");
}

}  // namespace
}  // namespace muster

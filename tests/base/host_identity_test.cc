#include "muster/base/host_identity.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace muster {

TEST(HostIdentity, IsTheSameForEverybodyHereUnlessToldOtherwise) {
  ::unsetenv("MUSTER_HOST_ID");
  const std::string here = host_identity();
  EXPECT_GT(here.size(), 36u) << here;  // a boot id and two namespaces
  EXPECT_EQ(host_identity(), here);
  ::setenv("MUSTER_HOST_ID", "a", 1);
  EXPECT_EQ(host_identity(), "a");
  ::unsetenv("MUSTER_HOST_ID");
}

}  // namespace muster

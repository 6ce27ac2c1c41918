#include "muster/device/readers/hwloc_xml.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

void fuzz_hwloc(const std::string& text) {
  answer_or_error([&] {
    check_inventory({.source = "fuzz", .simulated = true, .hosts = {hwloc_xml_host(text, "fuzz")}});
  });
}

}  // namespace muster
